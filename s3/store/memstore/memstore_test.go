package memstore_test

import (
	"testing"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/store/memstore"
	"github.com/millrace/millrace/s3/store/storetest"
)

func open(*testing.T) store.Store { return memstore.New() }

func TestConformance(t *testing.T) { storetest.Run(t, open) }

func TestRandom(t *testing.T) { storetest.RunRandom(t, open, 2000) }
