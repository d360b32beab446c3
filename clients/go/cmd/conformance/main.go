// The adapter between the conformance suite and this client: see clients/conformance/PROTOCOL.md. It adds no care of its own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lessor-dev/lessor/clients/go/concurrency"
	"github.com/lessor-dev/lessor/clients/go/lease"
)

// version is that of the client.
const version = "0.1.0"

// exitLost is the exit code if something was lost that hasn't been stopped since.
const exitLost = 4

type command struct {
	ID       int      `json:"id"`
	Do       string   `json:"do"`
	Lease    string   `json:"lease"`
	TTL      int      `json:"ttl"`
	Revoke   bool     `json:"revoke"`
	Kind     string   `json:"kind"`
	Name     string   `json:"name"`
	Keys     []string `json:"keys"`
	Mutex    string   `json:"mutex"`
	Election string   `json:"election"`
	Wait     *int     `json:"wait"`
	Value    string   `json:"value"`
}

type fields = map[string]any

// claim is something that this process holds: a lease, a mutex or an election.
type claim struct {
	lease   *lease.Lease
	kept    *lease.KeepAlive
	session *concurrency.Session
	lock    locked
	// settled is closed when a loss is reported no more.
	settled chan struct{}
	lost    bool
}

// locked is what a Mutex and an Election have in common here.
type locked interface {
	Held() bool
	Token() int64
}

type adapter struct {
	client *lease.Client
	holder string

	output sync.Mutex
	mu     sync.Mutex
	claims map[string]*claim
	// session is that of all mutexes and elections.
	session   *concurrency.Session
	sessionMu sync.Mutex
}

func main() {
	log.SetFlags(0)
	if len(os.Args) > 1 {
		log.Printf("unknown argument %q", os.Args[1])
		os.Exit(2)
	}
	a, err := newAdapter()
	if err != nil {
		log.Fatal(err)
	}
	a.write(fields{
		"event": "ready", "protocol": 1, "client": "lessor-client-go " + version,
		"can": []string{"lease", "attach", "mutex", "election"},
	})
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		a.releaseAll()
		os.Exit(0)
	}()
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var c command
		if err := json.Unmarshal(input.Bytes(), &c); err != nil {
			log.Fatal(err)
		}
		if c.Do == "status" {
			a.answer(c)
		} else {
			go a.answer(c)
		}
	}
	if a.hasLost() {
		os.Exit(exitLost)
	}
}

func newAdapter() (*adapter, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	holder := os.Getenv("HOLDER")
	var options []lease.Option
	if holder != "" {
		options = append(options, lease.WithFieldManager(holder))
	}
	client, err := lease.NewClient(config, os.Getenv("NAMESPACE"), options...)
	return &adapter{client: client, holder: holder, claims: map[string]*claim{}}, err
}

func (a *adapter) write(line fields) {
	text, err := json.Marshal(line)
	if err != nil {
		log.Fatal(err)
	}
	a.output.Lock()
	defer a.output.Unlock()
	if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
		log.Fatal(err)
	}
}

func (a *adapter) answer(c command) {
	result, err := a.do(context.Background(), c)
	if err != nil {
		a.write(fields{"id": c.ID, "error": fields{"code": code(err), "message": err.Error()}})
		return
	}
	if result == nil {
		result = fields{}
	}
	a.write(fields{"id": c.ID, "ok": result})
}

var (
	errUnsupported = errors.New("unsupported command")
	errTimeout     = errors.New("the wait is over")
)

// key is the name of what a command is about.
func (c command) key() string {
	switch {
	case c.Mutex != "":
		return "mutex/" + c.Mutex
	case c.Election != "":
		return "election/" + c.Election
	default:
		return "lease/" + c.Lease
	}
}

func (a *adapter) do(ctx context.Context, c command) (fields, error) {
	switch c.Do {
	case "grant":
		held, err := a.client.Grant(ctx, c.Lease, time.Duration(c.TTL)*time.Second, lease.Holder(a.holder))
		if err != nil {
			return nil, err
		}
		claim := &claim{lease: held, settled: make(chan struct{})}
		a.put(c.key(), claim)
		return claim.status(fields{"uid": held.UID()}), nil
	case "keep-alive":
		claim, err := a.get(c.key())
		if err != nil {
			return nil, err
		}
		a.mu.Lock()
		claim.kept = claim.lease.KeepAlive()
		a.mu.Unlock()
		go a.reportLoss(c, claim, claim.kept.Done(), claim.kept.Err)
		return nil, nil
	case "status":
		claim, err := a.get(c.key())
		if err != nil {
			return nil, err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		return claim.status(fields{}), nil
	case "stop":
		claim, err := a.take(c.key())
		if err != nil {
			return nil, err
		}
		if claim.kept != nil {
			claim.kept.Stop()
		}
		if c.Revoke {
			return nil, claim.lease.Revoke(ctx)
		}
		return nil, nil
	case "attach", "detach":
		target, err := target(c)
		if err != nil {
			return nil, err
		}
		if c.Do == "attach" {
			return nil, a.client.Attach(ctx, c.Lease, target, c.Keys...)
		}
		return nil, a.client.Detach(ctx, c.Lease, target, c.Keys...)
	case "lock", "try-lock", "campaign":
		return a.acquire(ctx, c)
	case "unlock", "resign":
		claim, err := a.take(c.key())
		if err != nil {
			return nil, err
		}
		if election, ok := claim.lock.(*concurrency.Election); ok {
			return nil, election.Resign(ctx)
		}
		return nil, claim.lock.(*concurrency.Mutex).Unlock(ctx)
	case "leader":
		session, err := a.sessionOf(c.TTL)
		if err != nil {
			return nil, err
		}
		leader, err := concurrency.NewElection(session, c.Election).Leader(ctx)
		return fields{"value": leader.Value, "token": leader.Token}, err
	default:
		return nil, fmt.Errorf("%w: %q", errUnsupported, c.Do)
	}
}

func target(c command) (lease.Target, error) {
	switch c.Kind {
	case "", "ConfigMap":
		return lease.ConfigMap(c.Name), nil
	case "Secret":
		return lease.Secret(c.Name), nil
	default:
		return lease.Target{Resource: schema.GroupVersionResource{}}, fmt.Errorf("%w: kind %q", errUnsupported, c.Kind)
	}
}

// sessionOf returns the session of the process. If it is lost, another one is made.
func (a *adapter) sessionOf(ttl int) (*concurrency.Session, error) {
	a.sessionMu.Lock()
	defer a.sessionMu.Unlock()
	if a.session == nil || a.session.Err() != nil {
		options := []concurrency.SessionOption{concurrency.WithHolder(a.holder)}
		if ttl > 0 {
			options = append(options, concurrency.WithTTL(ttl))
		}
		session, err := concurrency.NewSession(a.client, options...)
		if err != nil {
			return nil, err
		}
		a.session = session
	}
	return a.session, nil
}

func (a *adapter) acquire(ctx context.Context, c command) (fields, error) {
	if c.Wait != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(*c.Wait)*time.Second, errTimeout)
		defer cancel()
	}
	session, err := a.sessionOf(c.TTL)
	if err != nil {
		return nil, err
	}
	claim := &claim{session: session, settled: make(chan struct{})}
	switch c.Do {
	case "campaign":
		election := concurrency.NewElection(session, c.Election)
		claim.lock, err = election, election.Campaign(ctx, c.Value)
	case "try-lock":
		mutex := concurrency.NewMutex(session, c.Mutex)
		claim.lock, err = mutex, mutex.TryLock(ctx)
	default:
		mutex := concurrency.NewMutex(session, c.Mutex)
		claim.lock, err = mutex, mutex.Lock(ctx)
	}
	if err != nil {
		return nil, err
	}
	a.put(c.key(), claim)
	go a.reportLoss(c, claim, session.Done(), session.Err)
	return claim.status(fields{}), nil
}

// status adds what the library believes now.
func (c *claim) status(to fields) fields {
	switch {
	case c.lock != nil:
		to["held"], to["until"], to["token"] = c.lock.Held(), c.session.Until(), c.lock.Token()
	case c.kept != nil:
		to["held"], to["until"] = c.kept.Alive(), c.kept.Until()
	default:
		to["held"], to["until"] = c.lease.Alive(), c.lease.Deadline()
	}
	if c.lease != nil {
		to["ttl"], to["token"] = int64(c.lease.TTL()/time.Second), c.lease.FencingToken()
	}
	to["now"] = lease.Now()
	return to
}

// reportLoss writes an event when the claim is lost, unless it is stopped before.
func (a *adapter) reportLoss(c command, claim *claim, done <-chan struct{}, err func() error) {
	select {
	case <-claim.settled:
		return
	case <-done:
	}
	var lost *lease.LostError
	if !errors.As(err(), &lost) {
		return
	}
	at := lease.Now()
	a.mu.Lock()
	claim.lost = true
	a.mu.Unlock()
	event := fields{"event": "lost", "reason": lost.Reason, "message": lost.Error(), "at": at}
	for field, name := range map[string]string{"lease": c.Lease, "mutex": c.Mutex, "election": c.Election} {
		if name != "" {
			event[field] = name
		}
	}
	a.write(event)
}

func (a *adapter) put(key string, claim *claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claims[key] = claim
}

func (a *adapter) get(key string) (*claim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found := a.claims[key]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("this process doesn't hold %s", key)
}

func (a *adapter) take(key string) (*claim, error) {
	found, err := a.get(key)
	if err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.claims, key)
		close(found.settled)
	}
	return found, err
}

func (a *adapter) hasLost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, claim := range a.claims {
		if claim.lost {
			return true
		}
	}
	return false
}

// releaseAll revokes what this process holds.
func (a *adapter) releaseAll() {
	a.mu.Lock()
	var released sync.WaitGroup
	for _, claim := range a.claims {
		if claim.lease != nil {
			close(claim.settled)
			released.Go(func() {
				if claim.kept != nil {
					claim.kept.Stop()
				}
				report(claim.lease.Revoke(context.Background()))
			})
		}
	}
	a.mu.Unlock()
	if a.session != nil {
		released.Go(func() { report(a.session.Close()) })
	}
	released.Wait()
}

func report(err error) {
	if err != nil {
		log.Print(err)
	}
}

// code is the protocol's name of an error.
func code(err error) string {
	kinds := []struct {
		err  error
		code string
	}{
		{errUnsupported, "unsupported"},
		{errTimeout, "timeout"},
		{concurrency.ErrLocked, "locked"},
		{concurrency.ErrElectionNoLeader, "gone"},
		{lease.ErrExists, "exists"},
		{lease.ErrEnded, "ended"},
		{lease.ErrReplaced, "replaced"},
		{lease.ErrNotGranted, "not-granted"},
		{lease.ErrNotInstalled, "not-installed"},
		{lease.ErrGone, "gone"},
		{lease.ErrNoResponse, "unreachable"},
	}
	for _, kind := range kinds {
		if errors.Is(err, kind.err) {
			return kind.code
		}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "other"
	}
	switch code := status.Status().Code; {
	case code == 400 || code == 422:
		return "invalid"
	case code == 401:
		return "unauthorized"
	case code == 403:
		return "forbidden"
	case code == 404:
		return "gone"
	case code == 409:
		return "conflict"
	case code == 429:
		return "throttled"
	case code >= 500:
		return "unreachable"
	default:
		return "other"
	}
}
