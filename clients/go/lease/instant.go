package lease

import (
	"math"
	"time"

	"github.com/lessor-dev/lessor/clients/go/internal/clock"
)

// readInterval is the longest sleep between two reads of the clock, because timers don't run while the machine is suspended.
const readInterval = time.Second

// Instant is a point in time on a clock that can't be set and that includes the time in which the machine is suspended. On
// Linux it is the number of nanoseconds of CLOCK_BOOTTIME, so that processes of one machine can compare instants.
type Instant int64

// Now returns the current instant.
func Now() Instant {
	return Instant(clock.Now())
}

// Add returns the instant later by d, or the last one if there is none.
func (i Instant) Add(d time.Duration) Instant {
	if d > 0 && i > Instant(math.MaxInt64-d) {
		return math.MaxInt64
	}
	return i + Instant(d)
}

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration {
	return time.Duration(i - j)
}

// seconds is a duration of the API, at most the longest one of Go: 292 years.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second
}

// wholeSeconds rounds up, as the API has whole seconds.
func wholeSeconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}
