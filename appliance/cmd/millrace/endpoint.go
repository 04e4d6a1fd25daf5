package main

import (
	"crypto/tls"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/server"
	"github.com/millrace/millrace/s3/client"
	"github.com/millrace/millrace/s3/sigv4"
)

const defaultEndpoint = "http://127.0.0.1:9000"

// clientEnvironment is a part of the help of all client commands.
const clientEnvironment = `The endpoint and the access key come from the flags or from AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION.`

// endpointFlags are the flags that say where the S3 endpoint is, and how to reach it.
type endpointFlags struct {
	endpoint, region, credentials string
	insecure                      bool
	rdma, rdmaConnect             string
	rdmaProvider                  string
	rdmaCRC                       bool
}

func (f *endpointFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.endpoint, "endpoint", "",
		"`URL` of the S3 endpoint (default AWS_ENDPOINT_URL, else "+defaultEndpoint+")")
	fs.StringVar(&f.region, "region", "", "region `NAME` (default AWS_REGION, else us-east-1)")
	fs.StringVar(&f.credentials, "credentials", "",
		"take the access key from `FILE`, as serve keeps it in DIR/credentials")
	fs.BoolVar(&f.insecure, "insecure", false, "do not check the certificate of an https endpoint")
	fs.StringVar(&f.rdma, "rdma", "auto", "RDMA `MODE`: auto, require or off")
	fs.StringVar(&f.rdmaConnect, "rdma-connect", "",
		"make the RDMA connections to `HOST:PORT`, the server's --rdma-listen (default: the server makes them)")
	fs.StringVar(&f.rdmaProvider, "rdma-provider", "",
		"RDMA by `PROVIDER`: "+client.ProviderHardware+" or "+client.ProviderSoft+" (default: hardware where there is any)")
	fs.BoolVar(&f.rdmaCRC, "rdma-crc", true, "soft RDMA: guard the bytes by CRC32C; false if the server agrees")
}

// client returns a client that keeps up to that many connections (0 is the usual number), and has poolBytes of
// registered memory for streams by RDMA (0 is the usual size).
func (f *endpointFlags) client(env *environment, connections int, poolBytes int64) (*client.Client, error) {
	credential := sigv4.Credential{AccessKey: env.getenv("AWS_ACCESS_KEY_ID"),
		SecretKey: env.getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: env.getenv("AWS_SESSION_TOKEN")}
	if f.credentials != "" {
		var err error
		if credential, err = server.ReadCredential(f.credentials); err != nil {
			return nil, err
		}
	}
	if credential.AccessKey == "" {
		return nil, usagef("no access key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --credentials FILE")
	}
	c, err := client.New(client.Config{
		Endpoint:       firstOf(f.endpoint, env.getenv("AWS_ENDPOINT_URL"), defaultEndpoint),
		Region:         firstOf(f.region, env.getenv("AWS_REGION")),
		Credential:     credential,
		Mode:           client.Mode(f.rdma),
		RDMA:           client.DeviceConfig{Provider: f.rdmaProvider, NoCRC: !f.rdmaCRC, PoolBytes: poolBytes},
		RDMAConnect:    f.rdmaConnect,
		MaxConnections: connections,
		TLS:            &tls.Config{InsecureSkipVerify: f.insecure, MinVersion: tls.VersionTLS12},
	})
	if err != nil {
		return nil, usagef("%v", err)
	}
	return c, nil
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// location is s3://bucket/key; key may be "".
type location struct{ bucket, key string }

func parseLocation(text string) (location, error) {
	rest, ok := strings.CutPrefix(text, "s3://")
	bucket, key, _ := strings.Cut(rest, "/")
	if !ok || bucket == "" {
		return location{}, usagef("%q: want s3://BUCKET/KEY", text)
	}
	return location{bucket, key}, nil
}

func (l location) String() string { return "s3://" + l.bucket + "/" + l.key }
