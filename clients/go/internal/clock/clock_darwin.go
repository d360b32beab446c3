package clock

import "golang.org/x/sys/unix"

// bootTime reads CLOCK_MONOTONIC, which on Darwin includes the time in which the machine sleeps. That of Go doesn't.
func bootTime() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic("clock_gettime: " + err.Error())
	}
	return now.Nano()
}
