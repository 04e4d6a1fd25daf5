package gateway

import (
	"context"

	"github.com/millrace/millrace/s3/wire"
)

// grants renders the one ACL that there is: the owner has full control, and nobody else anything.
func grants(owner *wire.Account) []byte {
	const grantee = `Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"`
	x := wire.NewXML("AccessControlPolicy")
	x.Owner("Owner", owner.ID, owner.DisplayName)
	x.Open("AccessControlList")
	x.Open("Grant")
	x.Open(grantee)
	x.Text("ID", owner.ID)
	x.Text("DisplayName", owner.DisplayName)
	x.Close("Grantee")
	x.Text("Permission", "FULL_CONTROL")
	x.Close("Grant")
	x.Close("AccessControlList")
	x.Close("AccessControlPolicy")
	return x.Bytes()
}

func (g *Gateway) getBucketACL(ctx context.Context, _ Principal, r *request) (*response, error) {
	owner, err := g.bucketOwner(ctx, r.Bucket)
	if err != nil {
		return nil, err
	}
	return document(grants(owner)), nil
}

func (g *Gateway) getObjectACL(ctx context.Context, p Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	if _, err := g.store.Stat(ctx, r.Bucket, r.Key); err != nil {
		return nil, err
	}
	return g.getBucketACL(ctx, p, r)
}

// setACL accepts an ACL that is what there is anyway, in the form of a header.
func setACL(r *request) (*response, error) {
	if err := refuseFeatures(r, false); err != nil {
		return nil, err
	}
	if r.Header("X-Amz-Acl") == "" {
		return nil, notImplemented("An access control list in the body")
	}
	return &response{}, nil
}

func (g *Gateway) putBucketACL(ctx context.Context, _ Principal, r *request) (*response, error) {
	if _, err := g.store.Bucket(ctx, r.Bucket); err != nil {
		return nil, err
	}
	return setACL(r)
}

func (g *Gateway) putObjectACL(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	if _, err := g.store.Stat(ctx, r.Bucket, r.Key); err != nil {
		return nil, err
	}
	return setACL(r)
}
