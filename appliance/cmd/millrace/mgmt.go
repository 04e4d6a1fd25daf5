package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/server"
	"github.com/millrace/millrace/mgmt/api"
	"github.com/millrace/millrace/s3/sigv4"
)

const defaultMgmt = "https://127.0.0.1:9443"

// mgmtEnvironment is a part of the help of the commands that ask the management address.
const mgmtEnvironment = `With DIR, the folder of a virtual JBOF or the state folder, the access key and the certificate are taken from there.
Else the key comes from --credentials, or from MILLRACE_ROOT_ACCESS_KEY and MILLRACE_ROOT_SECRET_KEY, or from
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. It must be the root access key.`

// mgmtFlags say where the management address is, and how to reach it.
type mgmtFlags struct {
	address, credentials string
	insecure             bool
}

func (f *mgmtFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.address, "mgmt", defaultMgmt, "`URL` of the management address")
	fs.StringVar(&f.credentials, "credentials", "", "take the access key from `FILE`, as serve keeps it in DIR/credentials")
	fs.BoolVar(&f.insecure, "insecure", false, "do not check the certificate")
}

// The files of the state folder.
const (
	credentialsFile = "credentials"
	certificateFile = "mgmt-cert.pem"
)

// client returns a client of the management address; dir is "" or the state folder.
func (f *mgmtFlags) client(env *environment, dir string) (*api.Client, error) {
	key, err := f.credential(env, dir)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.insecure}
	if dir != "" && !f.insecure {
		if config, err = pinned(filepath.Join(dir, certificateFile)); err != nil {
			return nil, err
		}
	}
	c, err := api.NewClient(f.address, key.AccessKey, key.SecretKey, config)
	if err != nil {
		return nil, usagef("%v", err)
	}
	return c, nil
}

func (f *mgmtFlags) credential(env *environment, dir string) (sigv4.Credential, error) {
	if f.credentials != "" {
		return server.ReadCredential(f.credentials)
	}
	if dir != "" {
		key, err := server.ReadCredential(filepath.Join(dir, credentialsFile))
		if !errors.Is(err, fs.ErrNotExist) {
			return key, err
		}
	}
	for _, names := range [][2]string{{"MILLRACE_ROOT_ACCESS_KEY", "MILLRACE_ROOT_SECRET_KEY"},
		{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}} {
		if key := (sigv4.Credential{AccessKey: env.getenv(names[0]), SecretKey: env.getenv(names[1])}); key.AccessKey != "" {
			return key, nil
		}
	}
	return sigv4.Credential{}, usagef("no access key: give DIR or --credentials FILE, or set MILLRACE_ROOT_ACCESS_KEY and " +
		"MILLRACE_ROOT_SECRET_KEY")
}

// pinned accepts one certificate, the one in the file, whatever name the server is reached by.
func pinned(path string) (*tls.Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("certificate of the management address: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s: no certificate in it", path)
	}
	want, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection is stricter
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].Raw, want.Raw) {
				return fmt.Errorf("the server's certificate is not the one in %s", path)
			}
			return nil
		},
	}, nil
}

// stateFolder takes the optional argument DIR.
func stateFolder(args []string) (string, error) {
	switch len(args) {
	case 0:
		return "", nil
	case 1:
		return args[0], nil
	}
	return "", usagef("unexpected argument %q", args[1])
}
