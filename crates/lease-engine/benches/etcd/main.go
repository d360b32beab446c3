// Measures etcd's lessor through its exported functions, on a backend that does nothing: the fairest for it, since nothing is
// written anywhere. Prints one line per measurement, `operation leases figure`: nanoseconds per operation (per lease for `list`
// and `expire`, per call for `promote` and `demote`), or bytes per lease for `bytes`. ../vs_etcd.rs runs it and reads that.
package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/backend"
)

// The backend persists nothing and holds nothing; what the lessor doesn't call is left to the nil interfaces.
type noBackend struct{ backend.Backend }

func (noBackend) BatchTx() backend.BatchTx { return noTx{} }
func (noBackend) ForceCommit()             {}

type noTx struct{ backend.BatchTx }

func (noTx) Lock()                                                       {}
func (noTx) Unlock()                                                     {}
func (noTx) LockInsideApply()                                            {}
func (noTx) LockOutsideApply()                                           {}
func (noTx) UnsafeCreateBucket(backend.Bucket)                           {}
func (noTx) UnsafePut(backend.Bucket, []byte, []byte)                    {}
func (noTx) UnsafeDelete(backend.Bucket, []byte)                         {}
func (noTx) UnsafeForEach(backend.Bucket, func(k, v []byte) error) error { return nil }

type noDelete struct{}

func (noDelete) DeleteRange(key, end []byte) (int64, int64) { return 0, 0 }
func (noDelete) End()                                       {}

type version struct{}

func (version) Version() *semver.Version { return &semver.Version{Major: 3, Minor: 6} }

func newLessor() lease.Lessor {
	le := lease.NewLessor(zap.NewNop(), noBackend{}, version{}, lease.LessorConfig{MinLeaseTTL: 1})
	le.SetRangeDeleter(func() lease.TxnDelete { return noDelete{} })
	le.Promote(0)
	return le
}

// The same pseudo-random numbers as on the other side (splitmix64).
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func ids(n int) (granted, shuffled []lease.LeaseID) {
	r := random(1)
	for range n {
		granted = append(granted, lease.LeaseID(r.next()>>1|1))
	}
	shuffled = append(shuffled, granted...)
	for i := n - 1; i > 0; i-- {
		j := int(r.next() % uint64(i+1))
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	}
	return granted, shuffled
}

const ttl = 3600

type figures map[string]float64

// The best of several rounds: what disturbs a measurement only makes it slower.
func (f figures) best(operation string, figure float64) {
	if old, ok := f[operation]; !ok || figure < old {
		f[operation] = figure
	}
}

func (f figures) time(operation string, per int, run func()) {
	runtime.GC()
	start := cpuTime()
	run()
	f.best(operation, float64(cpuTime()-start)/float64(per))
}

// What this process has been computing for, in nanoseconds: others that use the machine don't count, the garbage collector does.
func cpuTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func round(f figures, n int, granted, shuffled []lease.LeaseID, keys [][]lease.LeaseItem) {
	before := heap()
	le := newLessor()
	f.time("grant", n, func() {
		for _, id := range granted {
			must(le.Grant(id, ttl))
		}
	})
	f.best("bytes", float64(heap()-before)/float64(n))
	f.time("renew", n, func() {
		for _, id := range shuffled {
			must(le.Renew(id))
		}
	})
	f.time("list", n, func() { runtime.KeepAlive(le.Leases()) })
	f.time("revoke", n, func() {
		for _, id := range shuffled {
			if err := le.Revoke(id); err != nil {
				panic(err)
			}
		}
	})
	le.Stop()

	le = newLessor()
	for _, id := range granted {
		must(le.Grant(id, ttl))
	}
	f.time("attach", n, func() {
		for i, id := range shuffled {
			if err := le.Attach(id, keys[i]); err != nil {
				panic(err)
			}
		}
	})
	f.time("demote", 1, le.Demote)
	f.time("promote", 1, func() { le.Promote(0) })
	f.time("revoke-with-item", n, func() {
		for _, id := range shuffled {
			if err := le.Revoke(id); err != nil {
				panic(err)
			}
		}
	})
	le.Stop()
}

// How long it takes until the last of n leases that end together has been handed out and revoked.
func expire(f figures, n int, granted []lease.LeaseID) {
	le := newLessor()
	for _, id := range granted {
		must(le.Grant(id, 1))
	}
	deadline := time.Now().Add(time.Second)
	ended := 0
	for ended < n {
		for _, l := range <-le.ExpiredLeasesC() {
			if le.Revoke(l.ID) == nil {
				ended++
			}
		}
	}
	f.best("expire", math.Max(0, float64(time.Since(deadline).Nanoseconds()))/float64(n))
	le.Stop()
}

func main() {
	for _, arg := range os.Args[1:] {
		n := must(strconv.Atoi(arg))
		granted, shuffled := ids(n)
		keys := make([][]lease.LeaseItem, n)
		for i := range keys {
			keys[i] = []lease.LeaseItem{{Key: fmt.Sprintf("%016x", uint64(granted[i]))}}
		}
		f := figures{}
		for i := range 3 {
			fmt.Fprintf(os.Stderr, "etcd: %d leases, round %d of 3\n", n, i+1)
			round(f, n, granted, shuffled, keys)
		}
		// It hands out at most a thousand leases per second, so one size tells all.
		if n <= 10_000 {
			fmt.Fprintf(os.Stderr, "etcd: %d leases with one deadline, some %d s\n", n, n/1000)
			expire(f, n, granted)
		}
		for operation, figure := range f {
			fmt.Printf("%s %d %.1f\n", operation, n, figure)
		}
	}
}
