// Package gateway is the S3 front: an http.Handler that turns requests into calls of a store.Store,
// and their results into S3's answers.
//
// There is one dispatcher and no chain of middleware: a request is parsed, authenticated and
// authorised, then one handler runs, and one place writes the answer, counts and logs. It holds no
// object bytes of its own, does not know signatures, HTTP syntax or XML (s3/sigv4, s3/wire), and
// does not know what the store is made of.
//
// Invariant: nothing of the store is read or changed for a request before its signature was found
// good and its principal allowed; and no answer looks whole to a client unless it is.
package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// Principal is who makes a request.
type Principal struct {
	Account   wire.Account
	AccessKey string
	Root      bool // the account that may do everything
}

// Accounts knows whom the access keys belong to.
type Accounts interface {
	// Principal returns the owner of an access key whose signature was found good.
	Principal(ctx context.Context, accessKey string) (Principal, error)
	// Account returns the account of an ID, as the owner of a bucket; for one that is gone, a name
	// has to be made up.
	Account(id string) wire.Account
}

// Event is one finished request.
type Event struct {
	Op        wire.Op
	Status    int
	Code      wire.Code // "" unless the answer was an error
	Transport string    // how the object's bytes travelled
	BytesIn   int64     // of the request's body, as framed; with RDMA, what was read from the window
	BytesOut  int64     // of the answer's body; with RDMA, what was written into the window
	Declined  string    // why it could not have the RDMA that it asked for; "" if it could, or did not ask
	Duration  time.Duration
}

// TransportHTTP is the Transport of bytes in the HTTP body.
const TransportHTTP = "http"

// Observer is told of every request. It must not block.
type Observer interface{ Observe(Event) }

// Limits bound what requests may take.
type Limits struct {
	// Requests is how many are served at the same time; more get SlowDown. 0: no limit.
	Requests int
	// Stall is how long a client may take to send or to take any bytes. 0: no limit.
	Stall time.Duration
	// RDMA is how long a transfer by RDMA may take as a whole. 0: DefaultRDMALimit.
	RDMA time.Duration
}

// Config is what a Gateway works with.
type Config struct {
	Store    store.Store
	Verifier *sigv4.Verifier
	Accounts Accounts
	// Authorise says whether a principal may do what a request asks for: nil, or an error such as
	// AccessDenied. If it is nil itself, Root principals may do everything, and others nothing.
	Authorise func(ctx context.Context, p Principal, r *wire.Request) error
	Region    string   // of all buckets
	Domains   []string // host names under which buckets are sub-domains; see wire.Parse
	HostID    string   // x-amz-id-2: which server answered
	Limits    Limits
	RDMA      RDMA         // nil: requests for it are declined
	Observer  Observer     // may be nil
	Logger    *slog.Logger // may be nil
}

// Gateway serves S3. Make one with New.
type Gateway struct {
	config   Config
	store    store.Store
	log      *slog.Logger
	inFlight atomic.Int64
	pairs    pairSessions
}

// New returns a Gateway. Store, Verifier and Accounts must be set.
func New(c Config) *Gateway {
	if c.Authorise == nil {
		c.Authorise = rootOnly
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Gateway{config: c, store: c.Store, log: c.Logger}
}

func rootOnly(_ context.Context, p Principal, _ *wire.Request) error {
	if p.Root {
		return nil
	}
	return &wire.Error{Code: wire.AccessDenied}
}

// handler does one operation. It runs after the request was authenticated and authorised.
type handler func(g *Gateway, ctx context.Context, p Principal, r *request) (*response, error)

// handlers has the operations that there are. One that is missing answers NotImplemented.
var handlers = [wire.OpCount]handler{
	wire.ListBuckets:             (*Gateway).listBuckets,
	wire.CreateBucket:            (*Gateway).createBucket,
	wire.HeadBucket:              (*Gateway).headBucket,
	wire.DeleteBucket:            (*Gateway).deleteBucket,
	wire.GetBucketLocation:       (*Gateway).getBucketLocation,
	wire.ListObjects:             (*Gateway).listObjects,
	wire.ListObjectsV2:           (*Gateway).listObjectsV2,
	wire.ListObjectVersions:      (*Gateway).listObjectVersions,
	wire.ListMultipartUploads:    (*Gateway).listMultipartUploads,
	wire.DeleteObjects:           (*Gateway).deleteObjects,
	wire.GetObject:               (*Gateway).getObject,
	wire.HeadObject:              (*Gateway).headObject,
	wire.PutObject:               (*Gateway).putObject,
	wire.CopyObject:              (*Gateway).copyObject,
	wire.DeleteObject:            (*Gateway).deleteObject,
	wire.GetObjectAttributes:     (*Gateway).getObjectAttributes,
	wire.CreateMultipartUpload:   (*Gateway).createMultipartUpload,
	wire.UploadPart:              (*Gateway).uploadPart,
	wire.UploadPartCopy:          (*Gateway).uploadPartCopy,
	wire.CompleteMultipartUpload: (*Gateway).completeMultipartUpload,
	wire.AbortMultipartUpload:    (*Gateway).abortMultipartUpload,
	wire.ListParts:               (*Gateway).listParts,
	wire.GetObjectTagging:        (*Gateway).getObjectTagging,
	wire.PutObjectTagging:        (*Gateway).putObjectTagging,
	wire.DeleteObjectTagging:     (*Gateway).deleteObjectTagging,
	wire.GetBucketTagging:        (*Gateway).getBucketTagging,
	wire.PutBucketTagging:        (*Gateway).putBucketTagging,
	wire.DeleteBucketTagging:     (*Gateway).deleteBucketTagging,
	wire.GetBucketAcl:            (*Gateway).getBucketACL,
	wire.PutBucketAcl:            (*Gateway).putBucketACL,
	wire.GetObjectAcl:            (*Gateway).getObjectACL,
	wire.PutObjectAcl:            (*Gateway).putObjectACL,

	wire.GetBucketVersioning:                (*Gateway).answerUnset,
	wire.GetBucketLogging:                   (*Gateway).answerUnset,
	wire.GetBucketNotificationConfiguration: (*Gateway).answerUnset,
	wire.GetBucketAccelerateConfiguration:   (*Gateway).answerUnset,
	wire.GetBucketRequestPayment:            (*Gateway).answerUnset,
	wire.GetBucketPolicy:                    (*Gateway).answerUnset,
	wire.GetBucketPolicyStatus:              (*Gateway).answerUnset,
	wire.GetBucketLifecycleConfiguration:    (*Gateway).answerUnset,
	wire.GetBucketCors:                      (*Gateway).answerUnset,
	wire.GetBucketEncryption:                (*Gateway).answerUnset,
	wire.GetBucketWebsite:                   (*Gateway).answerUnset,
	wire.GetBucketReplication:               (*Gateway).answerUnset,
	wire.GetBucketOwnershipControls:         (*Gateway).answerUnset,
	wire.GetPublicAccessBlock:               (*Gateway).answerUnset,
	wire.GetObjectLockConfiguration:         (*Gateway).answerUnset,
	wire.PutObjectLockConfiguration:         (*Gateway).answerUnset,
	wire.GetObjectRetention:                 (*Gateway).answerUnset,
	wire.PutObjectRetention:                 (*Gateway).answerUnset,
	wire.GetObjectLegalHold:                 (*Gateway).answerUnset,
	wire.PutObjectLegalHold:                 (*Gateway).answerUnset,
}

// ServeHTTP serves one S3 request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	start := time.Now()
	c := newCall(g, w, hr, start)
	defer g.inFlight.Add(-1)
	resp, err := g.do(hr.Context(), c)
	whole := c.finish(hr.Context(), resp, err)
	event := Event{
		Op: c.op(), Status: c.status, Code: c.code, Transport: TransportHTTP,
		BytesIn: c.body.read, BytesOut: c.written, Declined: c.declined, Duration: time.Since(start),
	}
	if c.rdma != nil && c.rdma.opened {
		event.Transport, event.BytesIn, event.BytesOut = TransportRDMA, c.rdma.in, c.rdma.out
	}
	if g.config.Observer != nil {
		g.config.Observer.Observe(event)
	}
	c.logEvent(hr.Context(), event)
	if !whole {
		panic(http.ErrAbortHandler) // the client must not take what it has for the whole
	}
}

// do takes a request up to the answer of its handler.
func (g *Gateway) do(ctx context.Context, c *call) (*response, error) {
	n := g.inFlight.Add(1)
	pair := pairOp(c.http)
	var err error
	if pair == wire.Unknown {
		c.request.Request, err = wire.Parse(c.http, g.config.Domains)
	}
	if limit := g.config.Limits.Requests; limit > 0 && n > int64(limit) {
		return nil, &wire.Error{Code: wire.SlowDown}
	}
	if err != nil {
		return nil, err
	}
	if pair != wire.Unknown {
		return g.doPair(ctx, c, pair)
	}
	p, err := g.authenticate(ctx, &c.request)
	if err != nil {
		return nil, err
	}
	if err := g.config.Authorise(ctx, p, c.request.Request); err != nil {
		return nil, err
	}
	if err := g.checkOwner(ctx, &c.request); err != nil {
		return nil, err
	}
	if err := g.parseRDMA(&c.request); err != nil {
		return nil, err
	}
	h := handlers[c.request.Op]
	if h == nil {
		return nil, notImplemented(c.request.Op.String())
	}
	return h(g, ctx, p, &c.request)
}

func notImplemented(what string) *wire.Error {
	return &wire.Error{
		Code: wire.NotImplemented, Message: what + " is not implemented",
		Fields: []wire.Field{{Name: "Operation", Value: what}},
	}
}

// checkOwner applies x-amz-expected-bucket-owner.
func (g *Gateway) checkOwner(ctx context.Context, r *request) error {
	want := r.Header("X-Amz-Expected-Bucket-Owner")
	if want == "" || r.Bucket == "" || r.Op == wire.CreateBucket {
		return nil
	}
	return g.wantOwner(ctx, r.Bucket, want)
}

func (g *Gateway) wantOwner(ctx context.Context, bucket, want string) error {
	b, err := g.store.Bucket(ctx, bucket)
	if err == nil && b.Owner != want {
		err = &wire.Error{Code: wire.AccessDenied}
	}
	return err
}
