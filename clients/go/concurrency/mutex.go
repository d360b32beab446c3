package concurrency

import (
	"context"
	"errors"
	"sync"
)

var (
	// ErrLocked means that another session holds the lock.
	ErrLocked = errors.New("mutex: Locked by another session")
	// ErrLockReleased means that the lock isn't held.
	ErrLockReleased = errors.New("mutex: lock has already been released")
)

// Mutex is a lock that at most one session holds.
type Mutex struct {
	lock
}

// NewMutex returns the mutex of this name. In etcd the name is the prefix of keys; here it may be any text as well.
func NewMutex(session *Session, name string) *Mutex {
	return &Mutex{newLock(session, name)}
}

// TryLock locks the mutex if no other session holds it. Otherwise the error is ErrLocked.
func (m *Mutex) TryLock(ctx context.Context) error {
	err := m.acquire(ctx, "", true)
	if errors.Is(err, errLocked) {
		return ErrLocked
	}
	return err
}

// Lock locks the mutex, and waits until it can. The wait ends with an error when ctx is done or the session is over.
func (m *Mutex) Lock(ctx context.Context) error {
	return m.acquire(ctx, "", false)
}

// Unlock unlocks the mutex. After an error the lock isn't held either, but other sessions may wait longer for it.
func (m *Mutex) Unlock(ctx context.Context) error {
	wasHeld, err := m.release(ctx)
	if !wasHeld {
		return ErrLockReleased
	}
	return err
}

// Held reports whether this Mutex certainly holds the lock now. It reads the clock, so it is right even in a process that was
// paused. Call it directly before an action that the lock protects, and let the system that performs the action compare the
// Token as well.
func (m *Mutex) Held() bool {
	return m.holds() != nil
}

// Token returns the fencing token, which is greater than that of every earlier acquisition of this lock. It is 0 if the lock
// isn't held.
func (m *Mutex) Token() int64 {
	if a := m.holds(); a != nil {
		return a.token
	}
	return 0
}

// Key returns the name of the lock object, a ConfigMap.
func (m *Mutex) Key() string {
	return m.object
}

type locker struct {
	*Mutex
}

// Lock locks the mutex, and panics if it can't.
func (l locker) Lock() {
	if err := l.Mutex.Lock(l.session.Ctx()); err != nil {
		panic(err)
	}
}

// Unlock unlocks the mutex, and panics if it can't.
func (l locker) Unlock() {
	if err := l.Mutex.Unlock(l.session.Ctx()); err != nil {
		panic(err)
	}
}

// NewLocker returns a mutex as a sync.Locker, which panics where a Mutex returns an error, as in etcd.
func NewLocker(session *Session, name string) sync.Locker {
	return locker{NewMutex(session, name)}
}
