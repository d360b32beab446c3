// The adapter of client-go's leader election, to have figures beside those of the project's mutexes.
//
// A mutex is a Lease of coordination.k8s.io, a lock a campaign in an election, and a release ReleaseOnCancel. There is no
// fencing token. Its times have the proportions of client-go's documentation: 15 s, 10 s and 2 s for a lease of 15 s.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"golang.org/x/sys/unix"
)

type command struct {
	ID    uint64 `json:"id"`
	Do    string `json:"do"`
	Mutex string `json:"mutex"`
	TTL   int64  `json:"ttl"`
}

// campaign is one lock, from its call to its release.
type campaign struct {
	held   atomic.Bool
	cancel context.CancelFunc
	done   chan struct{}
}

type adapter struct {
	client    kubernetes.Interface
	namespace string
	holder    string

	mutex     sync.Mutex
	campaigns map[string]*campaign
	lost      atomic.Bool

	output sync.Mutex
}

func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &time); err != nil {
		log.Fatal(err)
	}
	return time.Nano()
}

func (a *adapter) print(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		log.Fatal(err)
	}
	a.output.Lock()
	defer a.output.Unlock()
	fmt.Println(string(text))
}

func (a *adapter) ok(id uint64, ok map[string]any) { a.print(map[string]any{"id": id, "ok": ok}) }

func (a *adapter) fail(id uint64, code, message string) {
	a.print(map[string]any{"id": id, "error": map[string]any{"code": code, "message": message}})
}

// lock campaigns until it leads, and leads until it's cancelled or has lost.
func (a *adapter) lock(c command) {
	ttl := time.Duration(c.TTL) * time.Second
	ctx, cancel := context.WithCancel(context.Background())
	this := &campaign{cancel: cancel, done: make(chan struct{})}
	a.mutex.Lock()
	a.campaigns[c.Mutex] = this
	a.mutex.Unlock()
	leads := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: c.Mutex, Namespace: a.namespace},
			Client:     a.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: a.holder},
		},
		LeaseDuration:   ttl,
		RenewDeadline:   ttl * 2 / 3,
		RetryPeriod:     ttl * 2 / 15,
		ReleaseOnCancel: true,
		Name:            c.Mutex,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				this.held.Store(true)
				close(leads)
			},
			OnStoppedLeading: func() {
				if this.held.Swap(false) && ctx.Err() == nil {
					a.lost.Store(true)
					a.print(map[string]any{"event": "lost", "mutex": c.Mutex, "reason": "not-renewed",
						"message": "the election is lost", "at": now()})
				}
			},
		},
	})
	if err != nil {
		a.fail(c.ID, "other", err.Error())
		return
	}
	go func() {
		elector.Run(ctx)
		close(this.done)
	}()
	select {
	case <-leads:
		a.ok(c.ID, map[string]any{"until": nil, "now": now()})
	case <-this.done:
		a.fail(c.ID, "other", "the campaign has ended")
	}
}

func (a *adapter) run(c command) {
	a.mutex.Lock()
	this := a.campaigns[c.Mutex]
	a.mutex.Unlock()
	switch c.Do {
	case "lock":
		a.lock(c)
	case "status":
		held := this != nil && this.held.Load()
		a.ok(c.ID, map[string]any{"held": held, "until": nil, "now": now()})
	case "unlock":
		if this == nil {
			a.fail(c.ID, "gone", "not locked")
			return
		}
		this.held.Store(false)
		this.cancel()
		<-this.done
		a.ok(c.ID, map[string]any{})
	default:
		a.fail(c.ID, "unsupported", c.Do)
	}
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	a := &adapter{
		client: client, namespace: os.Getenv("NAMESPACE"), holder: os.Getenv("HOLDER"),
		campaigns: map[string]*campaign{},
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		a.mutex.Lock()
		for _, this := range a.campaigns {
			this.cancel()
			<-this.done
		}
		os.Exit(0)
	}()
	a.print(map[string]any{"event": "ready", "protocol": 1, "client": "client-go leaderelection", "can": []string{"mutex"}})
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var c command
		if err := json.Unmarshal(input.Bytes(), &c); err != nil {
			log.Fatal(err)
		}
		go a.run(c)
	}
	if a.lost.Load() {
		os.Exit(4)
	}
}
