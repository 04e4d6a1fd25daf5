package server

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/s3/sigv4"
)

// The environment variables of the first access key.
const (
	envAccessKey = "MILLRACE_ROOT_ACCESS_KEY"
	envSecretKey = "MILLRACE_ROOT_SECRET_KEY"
)

const (
	credentialsFile     = "credentials"
	maxCredentialsBytes = 4 << 10
	minSecretBytes      = 8
	maxKeyBytes         = 128
)

// rootCredential returns the first access key: from the environment, else from the credentials
// file in dir, else a new one that is kept there. generated tells the last case, where the
// caller shows it to the user, once.
func rootCredential(dir string, getenv func(string) string) (c sigv4.Credential, generated bool, err error) {
	c = sigv4.Credential{AccessKey: getenv(envAccessKey), SecretKey: getenv(envSecretKey)}
	if c.AccessKey != "" || c.SecretKey != "" {
		if err := checkCredential(c); err != nil {
			return sigv4.Credential{}, false, fmt.Errorf("%s and %s: %w", envAccessKey, envSecretKey, err)
		}
		return c, false, nil
	}
	if dir == "" {
		return sigv4.Credential{}, false, fmt.Errorf("no place for credentials: give --state-dir, or set %s and %s: %w",
			envAccessKey, envSecretKey, ErrUsage)
	}
	path := filepath.Join(dir, credentialsFile)
	c, err = ReadCredential(path)
	switch {
	case err == nil:
		return c, false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return sigv4.Credential{}, false, err
	}
	c = newCredential()
	text := fmt.Sprintf("access_key=%s\nsecret_key=%s\n", c.AccessKey, c.SecretKey)
	if err := replaceFile(path, []byte(text), 0o600); err != nil {
		return sigv4.Credential{}, false, fmt.Errorf("keep credentials: %w", err)
	}
	return c, true, nil
}

// newCredential makes a random access key of 20 characters and a secret of 40.
func newCredential() sigv4.Credential {
	var secret [30]byte
	rand.Read(secret[:]) // it never fails
	return sigv4.Credential{
		AccessKey: "MR" + rand.Text()[:18],
		// The URL alphabet: no "/" or "+", which some clients' configuration files mistreat.
		SecretKey: base64.URLEncoding.EncodeToString(secret[:]),
	}
}

// ReadCredential reads a credentials file (lines access_key= and secret_key=), which only its owner
// may be able to read. Errors never show its content.
func ReadCredential(path string) (sigv4.Credential, error) {
	info, err := os.Stat(path)
	if err != nil {
		return sigv4.Credential{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return sigv4.Credential{}, fmt.Errorf("%s: mode %04o lets others read it; want 0600", path, info.Mode().Perm())
	}
	if info.Size() > maxCredentialsBytes {
		return sigv4.Credential{}, fmt.Errorf("%s: larger than %d bytes", path, maxCredentialsBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return sigv4.Credential{}, err
	}
	c, err := parseCredential(text)
	if err != nil {
		return sigv4.Credential{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// parseCredential reads the lines access_key= and secret_key=; blank lines and comments (#) are skipped.
func parseCredential(text []byte) (sigv4.Credential, error) {
	var c sigv4.Credential
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		switch strings.TrimSpace(name) {
		case "access_key":
			c.AccessKey = strings.TrimSpace(value)
		case "secret_key":
			c.SecretKey = strings.TrimSpace(value)
		default:
			return sigv4.Credential{}, fmt.Errorf("line %d: want access_key= or secret_key=", n)
		}
	}
	if err := lines.Err(); err != nil {
		return sigv4.Credential{}, err
	}
	return c, checkCredential(c)
}

// checkCredential refuses keys that no client could use, and secrets that are too short to be one.
func checkCredential(c sigv4.Credential) error {
	switch {
	case c.AccessKey == "" || c.SecretKey == "":
		return errors.New("want both an access key and a secret key")
	case len(c.AccessKey) > maxKeyBytes || len(c.SecretKey) > maxKeyBytes:
		return fmt.Errorf("key longer than %d characters", maxKeyBytes)
	case len(c.SecretKey) < minSecretBytes:
		return fmt.Errorf("secret key shorter than %d characters", minSecretBytes)
	case strings.ContainsAny(c.AccessKey, "/=, \t\r\n") || strings.ContainsAny(c.SecretKey, "\r\n"):
		return errors.New("key with a character that it can't have")
	}
	return nil
}

// replaceFile gives path its new content in one step that survives a power cut.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
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
		return err
	}
	parent, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}
