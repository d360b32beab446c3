// Package clock reads a clock that can't be set and that includes the time in which the machine is suspended.
package clock

// Now returns the nanoseconds of the clock. Tests in virtual time replace it.
var Now = bootTime
