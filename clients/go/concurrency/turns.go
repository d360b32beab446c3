package concurrency

import (
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// maxTurns is how long a session may hold a lock in turns that follow one another closely.
	maxTurns = time.Second
	// maxGap is the longest pause between two such turns.
	maxGap = 200 * time.Millisecond
)

// turns are the holds of one lock by one session that follow one another closely. A session that locks again at once after it has
// unlocked is faster than any waiter, which has to receive the deletion first. So after a while it lets the others go first.
type turns struct {
	held  time.Duration
	began time.Time
	ended time.Time
	holds bool
}

func (t *turns) begin(now time.Time) {
	if now.Sub(t.ended) > maxGap {
		t.held = 0
	}
	t.began, t.holds = now, true
}

func (t *turns) end(now time.Time) {
	t.held += now.Sub(t.began)
	t.ended, t.holds = now, false
}

// pause is how long the session has to wait before its next turn.
func (t *turns) pause(now time.Time) time.Duration {
	since := now.Sub(t.ended)
	if t.held < maxTurns || since > maxGap {
		return 0
	}
	t.held = 0
	return maxStagger + rand.N(maxStagger) - since
}

// turnTaker has the turns of each lock that a session holds or has held a moment ago.
type turnTaker struct {
	mu    sync.Mutex
	turns map[string]*turns
}

func (t *turnTaker) begin(object string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.turns, func(_ string, old *turns) bool { return !old.holds && now.Sub(old.ended) > maxGap })
	if t.turns[object] == nil {
		t.turns[object] = &turns{}
	}
	t.turns[object].begin(now)
}

func (t *turnTaker) end(object string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turns[object] != nil {
		t.turns[object].end(now)
	}
}

func (t *turnTaker) pause(object string, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turns[object] == nil {
		return 0
	}
	return t.turns[object].pause(now)
}
