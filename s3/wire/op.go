package wire

// Op is an operation of S3, by the name that the Amazon S3 API reference gives it. The set is closed; what
// has no name there is Unknown.
type Op uint8

// The operations. PreflightBucket and PreflightObject are the OPTIONS requests of CORS.
const (
	Unknown Op = iota
	ListBuckets
	ListObjects
	ListObjectsV2
	ListObjectVersions
	ListMultipartUploads
	GetBucketLocation
	GetBucketAcl
	GetBucketPolicy
	GetBucketPolicyStatus
	GetBucketVersioning
	GetBucketTagging
	GetBucketLifecycleConfiguration
	GetBucketCors
	GetBucketEncryption
	GetBucketWebsite
	GetBucketLogging
	GetBucketNotificationConfiguration
	GetBucketReplication
	GetBucketRequestPayment
	GetBucketAccelerateConfiguration
	GetBucketOwnershipControls
	GetPublicAccessBlock
	GetObjectLockConfiguration
	GetBucketAnalyticsConfiguration
	GetBucketInventoryConfiguration
	GetBucketMetricsConfiguration
	GetBucketIntelligentTieringConfiguration
	GetBucketMetadataConfiguration
	GetBucketMetadataTableConfiguration
	CreateSession
	GetBucketAbac
	CreateBucket
	PutBucketAcl
	PutBucketPolicy
	PutBucketVersioning
	PutBucketTagging
	PutBucketLifecycleConfiguration
	PutBucketCors
	PutBucketEncryption
	PutBucketWebsite
	PutBucketLogging
	PutBucketNotificationConfiguration
	PutBucketReplication
	PutBucketRequestPayment
	PutBucketAccelerateConfiguration
	PutBucketOwnershipControls
	PutPublicAccessBlock
	PutObjectLockConfiguration
	PutBucketAnalyticsConfiguration
	PutBucketInventoryConfiguration
	PutBucketMetricsConfiguration
	PutBucketIntelligentTieringConfiguration
	UpdateBucketMetadataInventoryTableConfiguration
	UpdateBucketMetadataJournalTableConfiguration
	PutBucketAbac
	DeleteBucket
	DeleteBucketPolicy
	DeleteBucketTagging
	DeleteBucketLifecycle
	DeleteBucketCors
	DeleteBucketEncryption
	DeleteBucketWebsite
	DeleteBucketReplication
	DeleteBucketOwnershipControls
	DeletePublicAccessBlock
	DeleteBucketAnalyticsConfiguration
	DeleteBucketInventoryConfiguration
	DeleteBucketMetricsConfiguration
	DeleteBucketIntelligentTieringConfiguration
	DeleteBucketMetadataConfiguration
	DeleteBucketMetadataTableConfiguration
	PostObject
	DeleteObjects
	CreateBucketMetadataConfiguration
	CreateBucketMetadataTableConfiguration
	HeadBucket
	PreflightBucket
	GetObject
	ListParts
	GetObjectAttributes
	GetObjectAcl
	GetObjectTagging
	GetObjectRetention
	GetObjectLegalHold
	GetObjectTorrent
	PutObject
	UploadPart
	PutObjectAcl
	PutObjectTagging
	PutObjectRetention
	PutObjectLegalHold
	RenameObject
	UpdateObjectEncryption
	CreateMultipartUpload
	CompleteMultipartUpload
	RestoreObject
	SelectObjectContent
	DeleteObject
	AbortMultipartUpload
	DeleteObjectTagging
	HeadObject
	PreflightObject
	CopyObject
	UploadPartCopy
	ListBucketAnalyticsConfigurations
	ListBucketInventoryConfigurations
	ListBucketMetricsConfigurations
	ListBucketIntelligentTieringConfigurations

	// Not of S3: the requests of hipobj-rc-v2.
	PrepareRDMA
	ReadyRDMA
	CancelRDMA

	// OpCount is the number of operations, Unknown included.
	OpCount int = iota
)

// String returns the name of the operation.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return opNames[Unknown]
}

var opNames = [OpCount]string{
	Unknown:                                         "Unknown",
	ListBuckets:                                     "ListBuckets",
	ListObjects:                                     "ListObjects",
	ListObjectsV2:                                   "ListObjectsV2",
	ListObjectVersions:                              "ListObjectVersions",
	ListMultipartUploads:                            "ListMultipartUploads",
	GetBucketLocation:                               "GetBucketLocation",
	GetBucketAcl:                                    "GetBucketAcl",
	GetBucketPolicy:                                 "GetBucketPolicy",
	GetBucketPolicyStatus:                           "GetBucketPolicyStatus",
	GetBucketVersioning:                             "GetBucketVersioning",
	GetBucketTagging:                                "GetBucketTagging",
	GetBucketLifecycleConfiguration:                 "GetBucketLifecycleConfiguration",
	GetBucketCors:                                   "GetBucketCors",
	GetBucketEncryption:                             "GetBucketEncryption",
	GetBucketWebsite:                                "GetBucketWebsite",
	GetBucketLogging:                                "GetBucketLogging",
	GetBucketNotificationConfiguration:              "GetBucketNotificationConfiguration",
	GetBucketReplication:                            "GetBucketReplication",
	GetBucketRequestPayment:                         "GetBucketRequestPayment",
	GetBucketAccelerateConfiguration:                "GetBucketAccelerateConfiguration",
	GetBucketOwnershipControls:                      "GetBucketOwnershipControls",
	GetPublicAccessBlock:                            "GetPublicAccessBlock",
	GetObjectLockConfiguration:                      "GetObjectLockConfiguration",
	GetBucketAnalyticsConfiguration:                 "GetBucketAnalyticsConfiguration",
	GetBucketInventoryConfiguration:                 "GetBucketInventoryConfiguration",
	GetBucketMetricsConfiguration:                   "GetBucketMetricsConfiguration",
	GetBucketIntelligentTieringConfiguration:        "GetBucketIntelligentTieringConfiguration",
	GetBucketMetadataConfiguration:                  "GetBucketMetadataConfiguration",
	GetBucketMetadataTableConfiguration:             "GetBucketMetadataTableConfiguration",
	CreateSession:                                   "CreateSession",
	GetBucketAbac:                                   "GetBucketAbac",
	CreateBucket:                                    "CreateBucket",
	PutBucketAcl:                                    "PutBucketAcl",
	PutBucketPolicy:                                 "PutBucketPolicy",
	PutBucketVersioning:                             "PutBucketVersioning",
	PutBucketTagging:                                "PutBucketTagging",
	PutBucketLifecycleConfiguration:                 "PutBucketLifecycleConfiguration",
	PutBucketCors:                                   "PutBucketCors",
	PutBucketEncryption:                             "PutBucketEncryption",
	PutBucketWebsite:                                "PutBucketWebsite",
	PutBucketLogging:                                "PutBucketLogging",
	PutBucketNotificationConfiguration:              "PutBucketNotificationConfiguration",
	PutBucketReplication:                            "PutBucketReplication",
	PutBucketRequestPayment:                         "PutBucketRequestPayment",
	PutBucketAccelerateConfiguration:                "PutBucketAccelerateConfiguration",
	PutBucketOwnershipControls:                      "PutBucketOwnershipControls",
	PutPublicAccessBlock:                            "PutPublicAccessBlock",
	PutObjectLockConfiguration:                      "PutObjectLockConfiguration",
	PutBucketAnalyticsConfiguration:                 "PutBucketAnalyticsConfiguration",
	PutBucketInventoryConfiguration:                 "PutBucketInventoryConfiguration",
	PutBucketMetricsConfiguration:                   "PutBucketMetricsConfiguration",
	PutBucketIntelligentTieringConfiguration:        "PutBucketIntelligentTieringConfiguration",
	UpdateBucketMetadataInventoryTableConfiguration: "UpdateBucketMetadataInventoryTableConfiguration",
	UpdateBucketMetadataJournalTableConfiguration:   "UpdateBucketMetadataJournalTableConfiguration",
	PutBucketAbac:                                   "PutBucketAbac",
	DeleteBucket:                                    "DeleteBucket",
	DeleteBucketPolicy:                              "DeleteBucketPolicy",
	DeleteBucketTagging:                             "DeleteBucketTagging",
	DeleteBucketLifecycle:                           "DeleteBucketLifecycle",
	DeleteBucketCors:                                "DeleteBucketCors",
	DeleteBucketEncryption:                          "DeleteBucketEncryption",
	DeleteBucketWebsite:                             "DeleteBucketWebsite",
	DeleteBucketReplication:                         "DeleteBucketReplication",
	DeleteBucketOwnershipControls:                   "DeleteBucketOwnershipControls",
	DeletePublicAccessBlock:                         "DeletePublicAccessBlock",
	DeleteBucketAnalyticsConfiguration:              "DeleteBucketAnalyticsConfiguration",
	DeleteBucketInventoryConfiguration:              "DeleteBucketInventoryConfiguration",
	DeleteBucketMetricsConfiguration:                "DeleteBucketMetricsConfiguration",
	DeleteBucketIntelligentTieringConfiguration:     "DeleteBucketIntelligentTieringConfiguration",
	DeleteBucketMetadataConfiguration:               "DeleteBucketMetadataConfiguration",
	DeleteBucketMetadataTableConfiguration:          "DeleteBucketMetadataTableConfiguration",
	PostObject:                                      "PostObject",
	DeleteObjects:                                   "DeleteObjects",
	CreateBucketMetadataConfiguration:               "CreateBucketMetadataConfiguration",
	CreateBucketMetadataTableConfiguration:          "CreateBucketMetadataTableConfiguration",
	HeadBucket:                                      "HeadBucket",
	PreflightBucket:                                 "PreflightBucket",
	GetObject:                                       "GetObject",
	ListParts:                                       "ListParts",
	GetObjectAttributes:                             "GetObjectAttributes",
	GetObjectAcl:                                    "GetObjectAcl",
	GetObjectTagging:                                "GetObjectTagging",
	GetObjectRetention:                              "GetObjectRetention",
	GetObjectLegalHold:                              "GetObjectLegalHold",
	GetObjectTorrent:                                "GetObjectTorrent",
	PutObject:                                       "PutObject",
	UploadPart:                                      "UploadPart",
	PutObjectAcl:                                    "PutObjectAcl",
	PutObjectTagging:                                "PutObjectTagging",
	PutObjectRetention:                              "PutObjectRetention",
	PutObjectLegalHold:                              "PutObjectLegalHold",
	RenameObject:                                    "RenameObject",
	UpdateObjectEncryption:                          "UpdateObjectEncryption",
	CreateMultipartUpload:                           "CreateMultipartUpload",
	CompleteMultipartUpload:                         "CompleteMultipartUpload",
	RestoreObject:                                   "RestoreObject",
	SelectObjectContent:                             "SelectObjectContent",
	DeleteObject:                                    "DeleteObject",
	AbortMultipartUpload:                            "AbortMultipartUpload",
	DeleteObjectTagging:                             "DeleteObjectTagging",
	HeadObject:                                      "HeadObject",
	PreflightObject:                                 "PreflightObject",
	CopyObject:                                      "CopyObject",
	UploadPartCopy:                                  "UploadPartCopy",
	PrepareRDMA:                                     "PrepareRDMA", ReadyRDMA: "ReadyRDMA", CancelRDMA: "CancelRDMA",

	ListBucketAnalyticsConfigurations:          "ListBucketAnalyticsConfigurations",
	ListBucketInventoryConfigurations:          "ListBucketInventoryConfigurations",
	ListBucketMetricsConfigurations:            "ListBucketMetricsConfigurations",
	ListBucketIntelligentTieringConfigurations: "ListBucketIntelligentTieringConfigurations",
}
