package sweep

import (
	"fmt"
	"strings"
)

// Moved counts operations and bytes of one direction of RDMA.
type Moved struct {
	Ops   int64 `json:"ops"`
	Bytes int64 `json:"bytes"`
}

// Witness holds against one another what the three who took part say of the RDMA of a row.
type Witness struct {
	// Direction is that of the server: "write" into clients' windows for GET, "read" from them for PUT.
	Direction string `json:"direction"`
	// Client is what the results of the operations say.
	Client Moved `json:"client"`
	// Device is what clients' devices have seen. Those in hardware see nothing, and it is zero.
	Device Moved `json:"device"`
	// Server is what the server's counters say, by provider; nil if they were not read. Its operations are work
	// requests: one or more for an operation of the client.
	Server map[string]Moved `json:"server,omitempty"`
	// Disagreement says who differs; "" if all agree.
	Disagreement string `json:"disagreement,omitempty"`
}

// witnessOf returns nil where nothing was moved by RDMA, and nobody says otherwise.
func witnessOf(sum *Outcome, server *Usage) *Witness {
	w := &Witness{Client: Moved{sum.RDMAOps, sum.RDMABytes}}
	write := Moved{int64(sum.Served.WriteOps), int64(sum.Served.WriteBytes)}
	read := Moved{int64(sum.Served.ReadOps), int64(sum.Served.ReadBytes)}
	w.Direction, w.Device = "write", write
	if read.Bytes > 0 {
		w.Direction, w.Device = "read", read
	}
	total, moves := int64(0), true
	if server != nil {
		for label, m := range server.rdma {
			direction, provider, _ := strings.Cut(label, "/")
			if m.Bytes == 0 {
				continue
			}
			if w.Server == nil {
				w.Server = map[string]Moved{}
			}
			w.Direction = direction
			w.Server[provider] = m
			total += m.Bytes
			moves = moves && provider != "null"
		}
	}
	var wrong []string
	if server != nil && server.hasRDMA && total != w.Client.Bytes {
		wrong = append(wrong, fmt.Sprintf("the server counted %d bytes, the client %d", total, w.Client.Bytes))
	}
	if seen := write.Bytes + read.Bytes; moves && (seen > 0 || sum.Transfer.Provider == "soft") && seen != w.Client.Bytes {
		wrong = append(wrong, fmt.Sprintf("the device saw %d bytes, the client counted %d", seen, w.Client.Bytes))
	}
	w.Disagreement = strings.Join(wrong, "; ")
	if w.Client == (Moved{}) && w.Disagreement == "" {
		return nil
	}
	return w
}
