package endpoint

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Names of the files in the state folder.
const (
	certFile = "mgmt-cert.pem"
	keyFile  = "mgmt-key.pem"
)

// certYears is how long a self-signed certificate is valid; renewBefore is when a new one is made.
const (
	certYears   = 10
	renewBefore = 30 * 24 * time.Hour
)

// Certificate returns the certificate kept in dir, or makes a self-signed one (ECDSA P-256) for
// this machine's names and keeps it there: the key with mode 0600. With dir "" it is not kept. A
// kept one that is broken is an error; one that runs out within 30 days is replaced.
func Certificate(dir string, now time.Time) (tls.Certificate, error) {
	if dir != "" {
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, certFile), filepath.Join(dir, keyFile))
		switch {
		case err == nil && now.Before(cert.Leaf.NotAfter.Add(-renewBefore)):
			return cert, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return tls.Certificate{}, fmt.Errorf("management certificate: %w", err)
		}
	}
	certPEM, keyPEM, err := selfSigned(now)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make management certificate: %w", err)
	}
	if dir != "" {
		// The key first: with the certificate alone the next start would fail on a missing key, and
		// makes both anew.
		if err := replaceFile(filepath.Join(dir, keyFile), keyPEM, 0o600); err != nil {
			return tls.Certificate{}, err
		}
		if err := replaceFile(filepath.Join(dir, certFile), certPEM, 0o644); err != nil {
			return tls.Certificate{}, err
		}
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

func selfSigned(now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil && host != "" && host != "localhost" {
		names = append(names, host)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "millrace management"},
		NotBefore:    now.Add(-time.Hour), // clocks differ
		NotAfter:     now.AddDate(certYears, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     names,
		IPAddresses:  append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, ownAddresses()...),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// maxOwnAddresses limits the addresses in a certificate.
const maxOwnAddresses = 16

// ownAddresses lists this machine's unicast addresses, apart from loopback.
func ownAddresses() []net.IP {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil // the names remain
	}
	var ips []net.IP
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() && len(ips) < maxOwnAddresses {
			ips = append(ips, network.IP)
		}
	}
	return ips
}

// replaceFile gives path its new content in one step.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
