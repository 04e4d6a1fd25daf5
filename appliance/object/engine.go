// Package object is the engine: buckets, objects and multipart uploads over the drives of one
// pool. It implements store.Store. docs/architecture.md tells how a request flows through it.
//
// It speaks no HTTP, opens no device and does not code bytes itself: drives come to it opened
// (nvme/shardstore), appliance/segment codes and moves the bytes, appliance/placement says where they go.
//
// Invariant: when a mutation has been acknowledged, it is durable on every live member of its
// placement group, and its bytes on at least k+1 drives (k+m unless one failed in the act). A drive that
// missed a mutation is out of the map, durably, before that mutation is acknowledged.
package object

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/segment"
	"github.com/millrace/millrace/nvme/shardstore"
)

// DefaultInlineBytes is the size up to which an object's bytes live beside its index record.
const DefaultInlineBytes = 16 << 10

const lockStripes = 1024

// Member is one opened drive.
type Member struct {
	Store *shardstore.Store
	// Present returns an error once the drive is no longer where it was opened; nil means always there.
	Present func() error
	// New says that the drive was formatted to replace the one of its slot, which must not be there.
	New bool
}

// Config is what an engine is made of.
type Config struct {
	Members []Member // in any order
	Arena   *arena.Arena
	// InlineBytes is the largest inline object; 0 means DefaultInlineBytes.
	InlineBytes int
	// CheckInterval is the time between looks at the drives' health; 0 means one second.
	CheckInterval time.Duration
	// RelocateAfter is how long a drive may be away before the shards that it had are made anew on
	// others; 0 means ten minutes.
	RelocateAfter time.Duration
	// MaxDamagedShards is how many damaged shards of a drive are mended in one run before it is taken out; 0
	// means 100, less than 0 any number.
	MaxDamagedShards int
	// ScrubInterval is the time from the end of one scrub of a drive to the next; 0 means never.
	ScrubInterval time.Duration
	// ScrubBytesPerSecond is how much a scrub reads of each drive; 0 means as much as it can.
	ScrubBytesPerSecond int64
	// RepairBytesPerSecond is how much a repair writes, of all drives together; 0 means as much as it can.
	RepairBytesPerSecond int64
	// Clients tells how many requests are in progress: scrub and repair hold back while there are any. nil: they
	// do not.
	Clients func() int64
	Logger  *slog.Logger // nil means none
}

// The errors of Open.
var (
	// ErrNoPool: none of the drives has a map.
	ErrNoPool = errors.New("no pool on these drives")
	// ErrOtherPool: a drive belongs to another pool than the rest.
	ErrOtherPool = errors.New("drive belongs to another pool")
	// ErrDuplicateDrive: two drives have the same identity, and the pool can't do without them.
	ErrDuplicateDrive = errors.New("two drives with one identity")
	// ErrTooFewDrives: more drives are missing than the pool can lose.
	ErrTooFewDrives = errors.New("too few drives of the pool")
)

// Engine is an open pool.
type Engine struct {
	cfg    Config
	log    *slog.Logger
	io     *segment.IO
	stores []*shardstore.Store // by slot; nil when the drive isn't here
	// readOnly: too few drives are here to write to. Nothing is changed on them, the map included.
	readOnly bool
	checks   []func() error // by slot
	// dropped marks the slots that failed in this run: they stay out until the next.
	dropped    []atomic.Bool
	complained []atomic.Bool  // by slot: its failure is in the log
	outSince   []atomic.Int64 // by slot: when it went out in this run, in Unix ns; 0 if it did not
	damaged    []atomic.Int64 // by slot: damaged shards mended in this run
	paces      []pace         // by slot
	heals      chan wound

	view  atomic.Pointer[placement.View]
	mapMu sync.Mutex // serialises changes of the map

	seq      atomic.Uint64
	inflight inflight

	keys  [lockStripes]sync.RWMutex // by bucket and key
	gates []sync.RWMutex            // by group: mutations share, a fill excludes them

	buckets      buckets
	pins         pins
	janitor      *janitor
	mender       mender
	repairs      repairs
	repaired     repairState // the mender's own
	repairsAsked atomic.Uint64
	scrubs       scrubs
	counters     Counters

	stop context.CancelFunc
	done sync.WaitGroup
}

// Counters count what is worth watching; they only grow.
type Counters struct {
	DegradedWrites atomic.Uint64 // segments written with fewer shards than k+m
	DegradedReads  atomic.Uint64 // reads that needed other shards than the data shards
	DroppedDrives  atomic.Uint64
	RolledForward  atomic.Uint64 // mutations completed at open
	OrphanShards   atomic.Uint64 // shards of broken-off writes freed at open
	MendedShards   atomic.Uint64 // shards made anew
	MovedShards    atomic.Uint64 // shards moved to where they belong
	Resynced       atomic.Uint64 // drives brought up to date from the op-logs
	FilledRecords  atomic.Uint64 // records copied to drives that lacked them
	ScrubbedBytes  atomic.Uint64 // read by scrubs
	ScrubbedShards atomic.Uint64
	ScrubDamaged   atomic.Uint64 // shards that a scrub found damaged
	ScrubOrphans   atomic.Uint64 // shards that a scrub found nothing to refer to
	ScrubDiffering atomic.Uint64 // index records that a scrub found to differ between drives
}

// Open opens the pool that the members belong to. Drives of the map that are not among them, that die
// meanwhile, or that share an identity are out from then on, durably; drives of the pool that the map does not name,
// since they were replaced, are left out. The engine owns the stores from then on, also
// after an error, when it has closed them.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	e, err := Inspect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	e.start(ctx)
	return e, nil
}

// Inspect opens a pool as Open does, recovery included, but starts no background work: nothing is mended, and
// nothing is cleared up unless ClearUp is called. It is for stores whose changes go nowhere (appliance/inspect): what
// recovery did to them, the counters tell.
func Inspect(ctx context.Context, cfg Config) (*Engine, error) {
	e, err := openLiving(ctx, cfg)
	if err != nil {
		for _, m := range cfg.Members {
			_ = m.Store.Close() // the error that matters is the first
		}
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return e, nil
}

func open(ctx context.Context, cfg Config) (*Engine, error) {
	m, err := mapInForce(cfg.Members)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, log: cfg.Logger,
		io:         segment.New(segment.Config{Arena: cfg.Arena}),
		stores:     make([]*shardstore.Store, len(m.Slots)),
		checks:     make([]func() error, len(m.Slots)),
		dropped:    make([]atomic.Bool, len(m.Slots)),
		complained: make([]atomic.Bool, len(m.Slots)),
		outSince:   make([]atomic.Int64, len(m.Slots)),
		damaged:    make([]atomic.Int64, len(m.Slots)),
		paces:      make([]pace, len(m.Slots)),
		heals:      make(chan wound, maxHeals),
		mender:     mender{wake: make(chan struct{}, 1)},
		gates:      make([]sync.RWMutex, m.Groups+1), // the last for AllSlots
	}
	e.repairs.pace = pacer{bytesPerSecond: cfg.RepairBytesPerSecond, clients: cfg.Clients}
	e.scrubs.init(e)
	if err := e.seat(m); err != nil {
		return nil, err
	}
	if err := e.recover(ctx); err != nil {
		return nil, err
	}
	e.stop = func() {}
	return e, nil
}

// start starts the background work.
func (e *Engine) start(ctx context.Context) {
	bg, stop := context.WithCancel(context.WithoutCancel(ctx))
	e.stop = stop
	if e.readOnly {
		return
	}
	e.done.Go(func() { e.janitor.run(bg) })
	e.done.Go(func() { e.watch(bg) })
	e.done.Go(func() { e.mend(bg) })
	e.done.Go(func() { e.scrub(bg) })
}

func withDefaults(cfg Config) Config {
	if cfg.InlineBytes == 0 {
		cfg.InlineBytes = DefaultInlineBytes
	}
	if cfg.CheckInterval == 0 {
		cfg.CheckInterval = time.Second
	}
	if cfg.RelocateAfter == 0 {
		cfg.RelocateAfter = 10 * time.Minute
	}
	if cfg.MaxDamagedShards == 0 {
		cfg.MaxDamagedShards = defaultMaxDamaged
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// Close waits for background work and closes the drives. No call may be under way.
func (e *Engine) Close() error {
	e.stop()
	e.done.Wait()
	e.janitor.flush()
	errs := make([]error, len(e.stores))
	var wg sync.WaitGroup // one that hangs takes a while
	for slot, s := range e.stores {
		if s == nil {
			continue
		}
		wg.Go(func() {
			if err := s.Close(); err != nil && s.Err() == nil {
				errs[slot] = fmt.Errorf("close slot %d: %w", slot, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Counters gives the engine's counters.
func (e *Engine) Counters() *Counters { return &e.counters }

// Map gives the placement map in force. It must not be changed.
func (e *Engine) Map() *placement.Map { return e.view.Load().Map }

// Store gives the drive in a slot, nil when it isn't here.
func (e *Engine) Store(slot int) *shardstore.Store { return e.stores[slot] }

// Settle does all mending and clearing up that there is to do, now.
func (e *Engine) Settle(ctx context.Context) error {
	err := e.mendOnce(ctx)
	for errors.Is(err, errRepairGoesOn) {
		err = e.mendOnce(ctx)
	}
	e.janitor.flush()
	return err
}

// Quiet says whether no clearing up is queued; what waits for a reader doesn't count.
func (e *Engine) Quiet() bool { return e.janitor.quiet() }
