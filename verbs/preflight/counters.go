package preflight

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/verbs/fabric"
)

// errorCounters are those that grow when packets are lost, damaged or refused: of every port (counters), of mlx5 and of rxe
// (hw_counters). A port has some of them.
func errorCounters() []string {
	return []string{
		"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
		"port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
		"out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
		"out_of_buffer", "roce_adp_retrans_to", "roce_slow_restart", "rx_icrc_encapsulated",
		"resp_cqe_error", "req_cqe_error", "resp_remote_access_errors", "req_remote_access_errors",
		"out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err",
	}
}

// Errors are the error counters of a port, by name.
type Errors map[string]uint64

// ReadErrors reads the error counters of a port; nil if the driver shows none.
func ReadErrors(sys fs.FS, device string, port int) Errors {
	var out Errors
	for _, folder := range []string{"counters", "hw_counters"} {
		for _, name := range errorCounters() {
			s := readText(sys, fmt.Sprintf("class/infiniband/%s/ports/%d/%s/%s", device, port, folder, name))
			v, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				continue
			}
			if out == nil {
				out = Errors{}
			}
			out[name] = v
		}
	}
	return out
}

// Since returns what has grown since before.
func (e Errors) Since(before Errors) Errors {
	out := Errors{}
	for name, v := range e {
		if v > before[name] {
			out[name] = v - before[name]
		}
	}
	return out
}

// String lists what is not zero, by name.
func (e Errors) String() string {
	var parts []string
	for name, v := range e {
		if v > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, v))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// counters reports the errors of a port since it was brought up. They may be old: only growth under load is a problem.
func (c *checker) counters(p *fabric.Port, name string) {
	e := ReadErrors(c.sys.Sys, p.Device, p.Number)
	switch {
	case e == nil:
		c.warn("errors", name, "counters can't be read here", "see: rdma statistic show link "+name)
	case e.String() == "":
		c.ok("errors", name, "none on %d counters", len(e))
	default:
		c.warn("errors", name, "since the driver was loaded: "+e.String(), "see whether they grow: rdma statistic show link "+name)
	}
}
