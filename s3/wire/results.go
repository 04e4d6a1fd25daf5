package wire

import (
	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

// StorageClass is the one storage class that there is.
const StorageClass = "STANDARD"

// Account names who owns something.
type Account struct{ ID, DisplayName string }

// Listing is what the listings of a bucket have in common.
type Listing struct {
	Bucket, Prefix, Delimiter string
	MaxEntries                int
	URLEncode                 bool // encoding-type=url
	Truncated                 bool
	Prefixes                  []string
}

// head writes the elements that all listings have; key is the name of what Prefix is a prefix of.
func (l *Listing) head(x *XML, bucket, maxEntries string) {
	x.Text(bucket, l.Bucket)
	x.Key("Prefix", l.Prefix, l.URLEncode)
	if l.Delimiter != "" {
		x.Key("Delimiter", l.Delimiter, l.URLEncode)
	}
	x.Int(maxEntries, int64(l.MaxEntries))
	if l.URLEncode {
		x.Text("EncodingType", "url")
	}
	x.Bool("IsTruncated", l.Truncated)
}

func (l *Listing) prefixes(x *XML) {
	for _, p := range l.Prefixes {
		x.Open("CommonPrefixes")
		x.Key("Prefix", p, l.URLEncode)
		x.Close("CommonPrefixes")
	}
}

// ObjectList is the answer of ListObjects and ListObjectsV2.
type ObjectList struct {
	Listing
	Objects []store.Object
	Owner   *Account // of all objects; nil to leave it out
	// Of ListObjects.
	Marker, NextMarker string
	// Of ListObjectsV2. Token is nil if the request had none.
	StartAfter string
	Token      *string
	NextToken  string
}

// V1 renders the answer of ListObjects.
func (l *ObjectList) V1() []byte {
	x := l.newXML()
	l.head(x, "Name", "MaxKeys")
	x.Key("Marker", l.Marker, l.URLEncode)
	if l.NextMarker != "" {
		x.Key("NextMarker", l.NextMarker, l.URLEncode)
	}
	return l.finish(x)
}

// V2 renders the answer of ListObjectsV2.
func (l *ObjectList) V2() []byte {
	x := l.newXML()
	l.head(x, "Name", "MaxKeys")
	x.Int("KeyCount", int64(len(l.Objects)+len(l.Prefixes)))
	if l.Token != nil {
		x.Text("ContinuationToken", *l.Token)
	}
	x.TextUnlessEmpty("NextContinuationToken", l.NextToken)
	if l.StartAfter != "" {
		x.Key("StartAfter", l.StartAfter, l.URLEncode)
	}
	return l.finish(x)
}

func (l *ObjectList) newXML() *XML {
	const entryBytes = 384
	x := NewXML("ListBucketResult")
	x.b = append(make([]byte, 0, 1024+entryBytes*len(l.Objects)), x.b...)
	return x
}

func (l *ObjectList) finish(x *XML) []byte {
	for i := range l.Objects {
		o := &l.Objects[i]
		x.Open("Contents")
		x.Key("Key", o.Key, l.URLEncode)
		l.object(x, o)
		x.Close("Contents")
	}
	l.prefixes(x)
	x.Close("ListBucketResult")
	return x.b
}

// object writes what the listings say of an object, after its key.
func (l *ObjectList) object(x *XML, o *store.Object) {
	x.Time("LastModified", o.Modified)
	x.ETag(o.ETag)
	for _, c := range o.Checksums {
		x.Text("ChecksumAlgorithm", c.Algorithm.String())
	}
	if len(o.Checksums) > 0 {
		x.Text("ChecksumType", ChecksumType(o.Checksums[0]).String())
	}
	x.Int("Size", o.SizeBytes)
	if l.Owner != nil {
		x.Owner("Owner", l.Owner.ID, l.Owner.DisplayName)
	}
	x.Text("StorageClass", StorageClass)
}

// ChecksumType returns the type of a stored checksum.
func ChecksumType(c store.Checksum) checksum.Type {
	if c.Composite {
		return checksum.Composite
	}
	return checksum.FullObject
}

// ChecksumText returns a checksum as headers and XML carry it. Parts is the number of parts of the
// object that it is of.
func ChecksumText(c store.Checksum, parts int) string {
	if c.Composite {
		return checksum.EncodeComposite(c.Value, parts)
	}
	return checksum.Encode(c.Value)
}

// UploadList is the answer of ListMultipartUploads.
type UploadList struct {
	Listing
	Uploads               []store.Upload
	Owner                 func(id string) Account
	Checksum              func(u *store.Upload) (checksum.Algorithm, checksum.Type)
	KeyMarker, IDMarker   string
	NextKeyMarker, NextID string
}

// XML renders the answer.
func (l *UploadList) XML() []byte {
	x := NewXML("ListMultipartUploadsResult")
	l.head(x, "Bucket", "MaxUploads")
	x.Key("KeyMarker", l.KeyMarker, l.URLEncode)
	x.Text("UploadIdMarker", l.IDMarker)
	if l.Truncated {
		x.Key("NextKeyMarker", l.NextKeyMarker, l.URLEncode)
		x.Text("NextUploadIdMarker", l.NextID)
	}
	for i := range l.Uploads {
		u := &l.Uploads[i]
		owner := l.Owner(u.Owner)
		x.Open("Upload")
		x.Key("Key", u.Key, l.URLEncode)
		x.Text("UploadId", u.ID)
		x.Owner("Initiator", owner.ID, owner.DisplayName)
		x.Owner("Owner", owner.ID, owner.DisplayName)
		x.Text("StorageClass", StorageClass)
		x.Time("Initiated", u.Initiated)
		x.ChecksumKind(l.Checksum(u))
		x.Close("Upload")
	}
	l.prefixes(x)
	x.Close("ListMultipartUploadsResult")
	return x.b
}

// ChecksumKind writes the algorithm and the type of an upload's checksums, unless they are None.
func (x *XML) ChecksumKind(a checksum.Algorithm, t checksum.Type) {
	x.TextUnlessEmpty("ChecksumAlgorithm", a.String())
	x.TextUnlessEmpty("ChecksumType", t.String())
}

// PartChecksum writes the checksum of a part that has the algorithm, if there is one.
func (x *XML) PartChecksum(p *store.Part, a checksum.Algorithm) {
	for _, c := range p.Checksums {
		if c.Algorithm == a {
			x.Text("Checksum"+a.String(), checksum.Encode(c.Value))
		}
	}
}

// LocationConstraint renders the answer of GetBucketLocation.
func LocationConstraint(region string) []byte {
	x := &XML{b: []byte(xmlDeclaration)}
	if region == "" {
		x.Open(`LocationConstraint xmlns="` + namespace + `"/`)
		return x.b
	}
	x.Open(`LocationConstraint xmlns="` + namespace + `"`)
	x.b = appendEscaped(x.b, region)
	x.Close("LocationConstraint")
	return x.b
}

// Versions renders the answer of ListObjectVersions for a bucket without versions: those of its
// objects, which are all the latest.
func (l *ObjectList) Versions(idMarker string) []byte {
	x := NewXML("ListVersionsResult")
	l.head(x, "Name", "MaxKeys")
	x.Key("KeyMarker", l.Marker, l.URLEncode)
	x.Text("VersionIdMarker", idMarker)
	if l.Truncated {
		x.Key("NextKeyMarker", l.NextMarker, l.URLEncode)
		x.Text("NextVersionIdMarker", store.NullVersion)
	}
	for i := range l.Objects {
		o := &l.Objects[i]
		x.Open("Version")
		x.Key("Key", o.Key, l.URLEncode)
		x.Text("VersionId", store.NullVersion)
		x.Bool("IsLatest", true)
		l.object(x, o)
		x.Close("Version")
	}
	l.prefixes(x)
	x.Close("ListVersionsResult")
	return x.b
}
