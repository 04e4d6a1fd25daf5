package placement

import "github.com/millrace/millrace/appliance/erasure"

// DefaultScheme is the scheme for a new pool of that many drives, when none is asked for. From four
// drives on two can be lost; from sixteen on, three or four. With more drives than k+m each segment
// lies on some of them, and the others are spare room for a rebuild.
func DefaultScheme(drives int) erasure.Scheme {
	table := []struct{ drives, data, parity int }{
		{20, 16, 4}, {16, 12, 3}, {12, 8, 3}, {8, 6, 2}, {6, 4, 2}, {5, 3, 2}, {4, 2, 2}, {3, 2, 1}, {2, 1, 1},
	}
	for _, t := range table {
		if drives >= t.drives {
			return erasure.Scheme{Data: t.data, Parity: t.parity}
		}
	}
	return erasure.Scheme{Data: 1, Parity: 0}
}
