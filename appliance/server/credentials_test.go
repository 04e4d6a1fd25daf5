package server

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/sigv4"
)

// environment is a getenv with those variables.
func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestRootCredentialIsKept(t *testing.T) {
	dir := t.TempDir()
	first, generated, err := rootCredential(dir, environment())
	if err != nil || !generated {
		t.Fatalf("rootCredential() = generated %v, %v; want a new one", generated, err)
	}
	path := filepath.Join(dir, "credentials")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("credentials file: %v, %v; want mode 0600", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	want := "access_key=" + first.AccessKey + "\nsecret_key=" + first.SecretKey + "\n"
	if err != nil || string(text) != want {
		t.Errorf("credentials file = %q, %v; want %q", text, err, want)
	}
	if len(first.AccessKey) != 20 || len(first.SecretKey) != 40 {
		t.Errorf("lengths %d and %d; want 20 and 40", len(first.AccessKey), len(first.SecretKey))
	}
	second, generated, err := rootCredential(dir, environment())
	if err != nil || generated || second != first {
		t.Errorf("second rootCredential(): generated %v, same %v, %v; want the first again", generated, second == first, err)
	}
	env, generated, err := rootCredential(dir, environment(envAccessKey, "ak", envSecretKey, "secret-key"))
	if err != nil || generated || env.AccessKey != "ak" {
		t.Errorf("rootCredential with the environment = %v, %v, %v; want ak", env, generated, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := rootCredential(dir, environment()); err == nil {
		t.Error("credentials that others may read: no error")
	}
}

func TestRootCredentialErrors(t *testing.T) {
	if _, _, err := rootCredential("", environment()); !errors.Is(err, ErrUsage) {
		t.Errorf("without a folder and without the environment: %v; want ErrUsage", err)
	}
	for _, env := range [][]string{
		{envAccessKey, "ak"},
		{envSecretKey, "secret-key"},
		{envAccessKey, "ak", envSecretKey, "short"},
		{envAccessKey, "a/k", envSecretKey, "secret-key"},
	} {
		if _, _, err := rootCredential(t.TempDir(), environment(env...)); err == nil {
			t.Errorf("environment %v: no error", env)
		}
	}
}

func TestSecretIsNotInErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(path, []byte("access_key=AK\nsecret_kee=TOPSECRET\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ReadCredential(path)
	if err == nil || strings.Contains(err.Error(), "TOPSECRET") {
		t.Errorf("ReadCredential() = %v; want an error without the secret", err)
	}
	if text := fmt.Sprint(sigv4.Credential{AccessKey: "AK", SecretKey: "TOPSECRET"}); strings.Contains(text, "TOPSECRET") {
		t.Errorf("a printed credential shows its secret: %s", text)
	}
}

func FuzzParseCredential(f *testing.F) {
	f.Add([]byte("access_key=a\nsecret_key=12345678\n"))
	f.Add([]byte("# x\n\naccess_key = a\nsecret_key==\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseCredential(text)
		if err == nil && (c.AccessKey == "" || len(c.SecretKey) < minSecretBytes) {
			t.Errorf("parseCredential(%q) gave an unusable credential", text)
		}
		if err == nil && !bytes.Contains(text, []byte(c.SecretKey)) {
			t.Errorf("parseCredential(%q) made a secret up", text)
		}
	})
}
