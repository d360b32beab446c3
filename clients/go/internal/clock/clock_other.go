//go:build !linux && !darwin

package clock

import "time"

var start = time.Now()

// bootTime reads Go's monotonic clock. Whether it includes the time in which the machine is suspended depends on the system.
func bootTime() int64 {
	return int64(time.Since(start))
}
