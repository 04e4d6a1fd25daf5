// Package api is the management API: JSON over the management listener, below /api/v1, and the client of it that
// the command uses. It shows the pool and its drives, and starts a scrub.
//
// It knows no engine: it declares what it shows (Source), and the wiring gives it. It has no accounts of
// its own either; who may come in, the wiring says.
//
// Invariant: nothing is answered, not even whether a path exists, before the request is authenticated; and a page
// of another site that a browser has open can't make it change anything.
package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net/http"
)

// Source is what the API shows and does.
type Source interface {
	Pool() Pool
	Drives() []Drive
	// StartScrub begins a scrub of all drives, apart from those under way.
	StartScrub()
}

// Config says what is served, and to whom.
type Config struct {
	Source Source
	// User and Password are what a request must have, by HTTP Basic (RFC 7617).
	User, Password string
}

// maxBodyBytes bounds the body of a request; none of them needs one yet.
const maxBodyBytes = 1 << 10

// New returns the handler of everything below /api/.
func New(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/pool", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, c.Source.Pool()) })
	mux.HandleFunc("GET /api/v1/drives", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, c.Source.Drives()) })
	mux.HandleFunc("POST /api/v1/pool/scrub", func(w http.ResponseWriter, _ *http.Request) {
		c.Source.StartScrub()
		answer(w, http.StatusAccepted, c.Source.Pool().Scrub)
	})
	mux.HandleFunc("/api/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, problem{"there is nothing here"})
	})
	return authenticated(c, http.NewCrossOriginProtection().Handler(mux))
}

// authenticated lets a request pass that has the user and the password. The time that it takes tells
// nothing of them.
func authenticated(c Config, next http.Handler) http.Handler {
	wantUser, wantPassword := sha256.Sum256([]byte(c.User)), sha256.Sum256([]byte(c.Password))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := r.BasicAuth()
		gotUser, gotPassword := sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))
		same := subtle.ConstantTimeCompare(wantUser[:], gotUser[:]) & subtle.ConstantTimeCompare(wantPassword[:], gotPassword[:])
		if !ok || same != 1 || c.Password == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="millrace", charset="UTF-8"`)
			answer(w, http.StatusUnauthorized, problem{"the root access key and its secret are needed"})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		next.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// An error is the client's, who is gone.
	_ = json.NewEncoder(w).Encode(body)
}
