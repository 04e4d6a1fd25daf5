package sigv4

import (
	"net/http"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The query parameters of a presigned request, and those that betray Signature V2.
const (
	queryAlgorithm     = "X-Amz-Algorithm"
	queryCredential    = "X-Amz-Credential"
	queryDate          = "X-Amz-Date"
	queryExpires       = "X-Amz-Expires"
	querySignedHeaders = "X-Amz-SignedHeaders"
	querySignature     = "X-Amz-Signature"
	queryToken         = "X-Amz-Security-Token"
	queryPayload       = "X-Amz-Content-Sha256"
	queryV2AccessKey   = "AWSAccessKeyId"
	queryV2Signature   = "Signature"
)

// The headers, as http.Header has them.
const (
	headerAuthorization = "Authorization"
	headerDate          = "X-Amz-Date"
	headerPayload       = "X-Amz-Content-Sha256"
	headerToken         = "X-Amz-Security-Token"
)

// claim is what a request says of its own signature; nothing of it is proven yet.
type claim struct {
	presigned bool
	accessKey string
	scope     Scope
	signed    HeaderSet
	signature string
	timestamp string // in timeFormat
	time      time.Time
	expiry    time.Duration // presigned only
	payload   string
	token     string
}

// parseClaim finds the form of the signature and reads it. w.setQuery comes first.
func (w *workspace) parseClaim(r *http.Request) (claim, error) {
	_, algorithms := w.parameter(queryAlgorithm)
	_, signatures := w.parameter(querySignature)
	presigned := algorithms+signatures > 0
	switch values := r.Header[headerAuthorization]; {
	case len(values) > 1 || len(values) == 1 && presigned:
		return claim{}, errTwoMechanisms()
	case len(values) == 1:
		return parseHeaderClaim(r, values[0])
	case presigned:
		return w.parseQueryClaim(r)
	}
	_, accessKeys := w.parameter(queryV2AccessKey)
	_, signatures = w.parameter(queryV2Signature)
	if accessKeys+signatures > 0 {
		return claim{}, errUnsupported()
	}
	return claim{}, ErrAnonymous
}

// only returns the value of a header that may come once at most.
func only(h http.Header, key string) (value string, err error) {
	switch values := h[key]; len(values) {
	case 0:
		return "", nil
	case 1:
		return strings.TrimSpace(values[0]), nil
	}
	return "", refuse(http.StatusBadRequest, "InvalidArgument", "The header must not be repeated.",
		Field{"ArgumentName", strings.ToLower(key)})
}

func parseHeaderClaim(r *http.Request, value string) (claim, error) {
	if len(value) > MaxAuthorizationBytes {
		return claim{}, errMalformed(false, "it is too long.")
	}
	kind, rest, _ := strings.Cut(value, " ")
	switch {
	case kind == algorithmName:
	case kind == "AWS" || strings.HasPrefix(kind, "AWS4-"):
		return claim{}, errUnsupported()
	default:
		return claim{}, errAuthorizationType(value)
	}
	c, err := parseComponents(rest)
	if err != nil {
		return claim{}, err
	}
	if c.payload, err = only(r.Header, headerPayload); err != nil {
		return claim{}, err
	}
	if c.payload == "" {
		return claim{}, refuse(http.StatusBadRequest, "InvalidRequest",
			"Missing required header for this request: x-amz-content-sha256")
	}
	if c.token, err = only(r.Header, headerToken); err != nil {
		return claim{}, err
	}
	if err := c.setHeaderTime(r.Header); err != nil {
		return claim{}, err
	}
	return c, c.checkDate()
}

// parseComponents reads "Credential=…, SignedHeaders=…, Signature=…", in any order.
func parseComponents(rest string) (claim, error) {
	var c claim
	var credential string
	more := true
	for count := 0; more; count++ {
		var piece string
		piece, rest, more = strings.Cut(rest, ",")
		name, value, _ := strings.Cut(strings.TrimSpace(piece), "=")
		switch {
		case name == "Credential" && credential == "":
			credential = value
		case name == "SignedHeaders" && c.signed == "":
			c.signed = HeaderSet(value)
		case name == "Signature" && c.signature == "":
			c.signature = value
		default:
			more, c.signature = false, ""
		}
	}
	if credential == "" || c.signed == "" || c.signature == "" {
		return claim{}, errMalformed(false,
			"the authorization header requires three components: Credential, SignedHeaders, and Signature.")
	}
	return c, c.setCredential(credential)
}

// setCredential reads "access key/date/region/s3/aws4_request" and checks the set of signed headers.
func (c *claim) setCredential(credential string) error {
	prefix := ""
	if c.presigned {
		prefix = "Error parsing the X-Amz-Credential parameter; "
	}
	parts, rest := [4]string{}, credential
	for i := 3; i >= 0; i-- {
		slash := strings.LastIndexByte(rest, '/')
		if slash < 0 {
			return errMalformed(c.presigned, prefix+
				"the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".")
		}
		rest, parts[i] = rest[:slash], rest[slash+1:]
	}
	c.accessKey, c.scope = rest, Scope{Date: parts[0], Region: parts[1]}
	switch {
	case c.accessKey == "" || len(c.scope.Date) != dateBytes:
		return errMalformed(c.presigned, prefix+
			"the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".")
	case parts[2] != serviceName:
		return errMalformed(c.presigned, prefix+"incorrect service \""+parts[2]+"\". This endpoint belongs to \"s3\".")
	case parts[3] != terminator:
		return errMalformed(c.presigned, prefix+"incorrect terminal \""+parts[3]+"\". This endpoint uses \"aws4_request\".")
	case !c.signed.valid():
		return errMalformed(c.presigned, "SignedHeaders must be lower-case header names in ascending order.")
	}
	return nil
}

func (c *claim) setHeaderTime(h http.Header) error {
	value, err := only(h, headerDate)
	if err != nil {
		return err
	}
	if value == "" {
		if value, err = only(h, "Date"); err != nil {
			return err
		}
	}
	if c.time, err = time.Parse(timeFormat, value); err == nil {
		c.timestamp = value
		return nil
	}
	if c.time, err = mail.ParseDate(value); err != nil { // RFC 5322, of which the date of HTTP is a case; some send -0000
		return errAccessDenied("AWS authentication requires a valid Date or x-amz-date header")
	}
	c.time = c.time.UTC()
	c.timestamp = c.time.Format(timeFormat)
	return nil
}

// checkDate compares the date of the scope with the time of the request.
func (c *claim) checkDate() error {
	if c.timestamp[:dateBytes] == c.scope.Date {
		return nil
	}
	detail := "Invalid credential date \"" + c.scope.Date + "\". This date is not the same as X-Amz-Date: \"" +
		c.timestamp[:dateBytes] + "\"."
	if c.presigned {
		detail = "Error parsing the X-Amz-Credential parameter; " + detail
	}
	return errMalformed(c.presigned, detail)
}

func (w *workspace) parseQueryClaim(r *http.Request) (claim, error) {
	c := claim{presigned: true}
	var algorithm, credential, expires, signed string
	for _, p := range [...]struct {
		name     string
		optional bool
		value    *string
	}{
		{queryAlgorithm, false, &algorithm},
		{queryCredential, false, &credential},
		{queryDate, false, &c.timestamp},
		{queryExpires, false, &expires},
		{querySignedHeaders, false, &signed},
		{querySignature, false, &c.signature},
		{queryToken, true, &c.token},
		{queryPayload, true, &c.payload},
	} {
		raw, count := w.parameter(p.name)
		*p.value, _ = url.QueryUnescape(raw) // setQuery has refused wrong escapes
		if count > 1 || *p.value == "" && !p.optional {
			return claim{}, errMalformed(true, "Query-string authentication version 4 requires the X-Amz-Algorithm, "+
				"X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.")
		}
	}
	if algorithm != algorithmName {
		return claim{}, errMalformed(true, "X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"")
	}
	c.signed = HeaderSet(signed)
	if err := c.setCredential(credential); err != nil {
		return claim{}, err
	}
	if err := c.setQueryTime(expires); err != nil {
		return claim{}, err
	}
	if c.payload == "" {
		var err error
		if c.payload, err = only(r.Header, headerPayload); err != nil {
			return claim{}, err
		}
	}
	if c.payload == "" {
		c.payload = UnsignedPayload
	}
	return c, nil
}

func (c *claim) setQueryTime(expires string) error {
	var err error
	if c.time, err = time.Parse(timeFormat, c.timestamp); err != nil {
		return errMalformed(true, "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
	}
	seconds, err := strconv.ParseInt(expires, 10, 64)
	switch {
	case err != nil:
		return errMalformed(true, "X-Amz-Expires should be a number")
	case seconds < 0:
		return errMalformed(true, "X-Amz-Expires must be non-negative")
	case seconds > int64(MaxExpiry/time.Second):
		return errMalformed(true, "X-Amz-Expires must be less than a week (in seconds); that is, the given "+
			"X-Amz-Expires must be less than 604800 seconds")
	}
	c.expiry = time.Duration(seconds) * time.Second
	return c.checkDate()
}

// checkTime tells whether the request may be served now.
func (c *claim) checkTime(now time.Time) error {
	age := now.Sub(c.time)
	if !c.presigned {
		if age > MaxSkew || age < -MaxSkew {
			return errSkewed(c.timestamp, now)
		}
		return nil
	}
	if age < -MaxSkew {
		return errAccessDenied("Request is not yet valid", Field{"X-Amz-Date", c.timestamp},
			Field{"ServerTime", now.UTC().Format(time.RFC3339)})
	}
	if age > c.expiry {
		return errAccessDenied("Request has expired",
			Field{"X-Amz-Expires", strconv.FormatInt(int64(c.expiry/time.Second), 10)},
			Field{"Expires", c.time.Add(c.expiry).Format(time.RFC3339)},
			Field{"ServerTime", now.UTC().Format(time.RFC3339)})
	}
	return nil
}

// checkSigned refuses a request with a header that must be signed but is not: Host, and every x-amz-*
// header, since they change what the request does. The payload's hash is exempt when presigned:
// it is part of what is signed in any case.
func (c *claim) checkSigned(h http.Header) error {
	var missing []string
	if !c.signed.Has("host") {
		missing = append(missing, "host")
	}
	for key := range h {
		const prefix = "x-amz-"
		if len(key) < len(prefix) || !strings.EqualFold(key[:len(prefix)], prefix) || c.signed.Has(key) ||
			c.presigned && key == headerPayload {
			continue
		}
		missing = append(missing, strings.ToLower(key))
	}
	if missing == nil {
		return nil
	}
	slices.Sort(missing)
	return errAccessDenied("There were headers present in the request which were not signed",
		Field{"HeadersNotSigned", strings.Join(missing, ", ")})
}
