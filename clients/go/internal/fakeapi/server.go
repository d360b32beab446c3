// Package fakeapi is an API server and an operator in memory, for tests that need virtual time or faults that a real server can't be
// made to show. It knows ConfigMaps and Leases of one namespace, and as much of the real one's behaviour as the clients rely on.
package fakeapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Namespace is the namespace in which everything is.
const Namespace = "default"

type object = map[string]any

// Server is an http.RoundTripper. Its operator grants a lease at once, and ends it when its time is over.
type Server struct {
	// NoOperator leaves leases without a grant.
	NoOperator bool

	mu       sync.Mutex
	fault    Fault
	version  int
	objects  map[string]object
	watchers map[*watcher]struct{}
	deadline map[string]time.Time
	requests []string
}

// Fault is called before a request, and may answer in the server's place. With late, the server handles the request after that much
// time; the client gets its answer then, unless it has given up.
type Fault func(request *http.Request) (late time.Duration, fault *http.Response, err error)

// SetFault sets what is called before each request from now on, or nothing.
func (s *Server) SetFault(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

type watcher struct {
	kind, label, name string
	body              *io.PipeWriter
	events            chan []byte
	done              chan struct{}
}

// New returns an empty server.
func New() *Server {
	return &Server{
		version: 100, objects: map[string]object{}, watchers: map[*watcher]struct{}{}, deadline: map[string]time.Time{},
	}
}

// Config is how a client reaches the server.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: "http://fake", Transport: s}
}

// Requests returns method and name of each request so far that isn't a watch or list.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

// Watches returns the number of open watches of a kind, such as leases.
func (s *Server) Watches(kind string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for w := range s.watchers {
		if w.kind == kind {
			count++
		}
	}
	return count
}

// Exists reports whether an object, such as leases/a, is there. A lease that has ended isn't.
func (s *Server) Exists(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[key] != nil
}

// Deadline is when the operator ends a lease.
func (s *Server) Deadline(name string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline["leases/"+name]
}

// Change changes an object as another client would.
func (s *Server) Change(key string, patch object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	merge(s.objects[key], patch)
	s.put(key, s.objects[key], "MODIFIED")
}

// End ends a lease now, with what is attached to it, as after a revoke.
func (s *Server) End(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end("leases/" + name)
}

// RoundTrip answers a request.
func (s *Server) RoundTrip(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		body, _ = io.ReadAll(request.Body)
		_ = request.Body.Close()
	}
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		late, fault, err := fault(request)
		if fault != nil || err != nil {
			return fault, err
		}
		if late > 0 {
			answer := make(chan *http.Response, 1)
			time.AfterFunc(late, func() { answer <- s.handle(request, body) })
			select {
			case response := <-answer:
				return response, nil
			case <-request.Context().Done():
				return nil, request.Context().Err()
			}
		}
	}
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	return s.handle(request, body), nil
}

func (s *Server) handle(request *http.Request, body []byte) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, name, _ := strings.Cut(strings.TrimPrefix(request.URL.Path[strings.Index(request.URL.Path, "/namespaces/"):],
		"/namespaces/"+Namespace+"/"), "/")
	query := request.URL.Query()
	key := path.Join(kind, name)
	if request.Method == http.MethodGet && name == "" {
		if query.Get("watch") != "" {
			return s.watch(request, kind)
		}
		return s.list(kind, query.Get("labelSelector"))
	}
	s.requests = append(s.requests, request.Method+" "+key)
	found := s.objects[key]
	if found == nil && request.Method != http.MethodPost {
		return Status(404, "NotFound", name, fmt.Sprintf("%s %q not found", kind, name), "")
	}
	var sent object
	if len(body) > 0 {
		if err := json.Unmarshal(body, &sent); err != nil {
			return Status(400, "BadRequest", name, err.Error(), "")
		}
	}
	switch request.Method {
	case http.MethodPost:
		name = str(sent, "metadata", "name")
		key = path.Join(kind, name)
		if s.objects[key] != nil {
			return Status(409, "AlreadyExists", name, fmt.Sprintf("%s %q already exists", kind, name), "")
		}
		metadata := sent["metadata"].(object)
		metadata["uid"] = fmt.Sprintf("uid-%d", s.version)
		metadata["generation"] = 1
		s.put(key, sent, "ADDED")
		if kind == "leases" && !s.NoOperator {
			s.grant(key)
		}
		return reply(201, s.objects[key])
	case http.MethodPatch:
		if uid := str(sent, "metadata", "uid"); uid != "" && uid != str(found, "metadata", "uid") {
			return Status(422, "Invalid", name, "metadata.uid: field is immutable", "metadata.uid")
		}
		if version := str(sent, "metadata", "resourceVersion"); version != "" && version != str(found, "metadata", "resourceVersion") {
			return Status(409, "Conflict", name, "the object has been modified", "")
		}
		merge(found, sent)
		s.put(key, found, "MODIFIED")
		if kind == "leases" {
			s.renewed(key)
		}
		return reply(200, found)
	case http.MethodDelete:
		for field, want := range preconditions(sent["preconditions"]) {
			if str(found, "metadata", field) != want {
				return Status(409, "Conflict", name, "the precondition ("+want+") does not match", "")
			}
		}
		if kind == "leases" {
			s.end(key)
		} else {
			s.remove(key)
		}
		return Status(200, "", name, "", "")
	default:
		return reply(200, found)
	}
}

func preconditions(value any) map[string]string {
	all := map[string]string{}
	fields, _ := value.(object)
	for field, value := range fields {
		all[field] = fmt.Sprint(value)
	}
	return all
}

// grant is what the operator does at once.
func (s *Server) grant(key string) {
	lease := s.objects[key]
	now := time.Now().UTC().Format(metav1.RFC3339Micro)
	lease["status"] = object{
		"specGeneration": 1, "grantedTTLSeconds": lease["spec"].(object)["ttlSeconds"], "grantTime": now, "fencingToken": s.version,
		"conditions": []any{object{"type": "Active", "status": "True", "reason": "Granted", "message": "",
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}},
	}
	s.put(key, lease, "MODIFIED")
	s.renewed(key)
}

func (s *Server) renewed(key string) {
	ttl, _ := s.objects[key]["status"].(object)["grantedTTLSeconds"].(float64)
	deadline := time.Now().Add(time.Duration(ttl * float64(time.Second)))
	s.deadline[key] = deadline
	time.AfterFunc(time.Until(deadline), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.deadline[key].Equal(deadline) {
			s.end(key)
		}
	})
}

// end deletes a lease, and what is attached to it.
func (s *Server) end(key string) {
	delete(s.deadline, key)
	s.remove(key)
	for attached, object := range s.objects {
		if str(object, "metadata", "annotations", "lessor.dev/lease") == path.Base(key) {
			s.remove(attached)
		}
	}
}

func (s *Server) remove(key string) {
	if found := s.objects[key]; found != nil {
		delete(s.objects, key)
		s.version++
		found["metadata"].(object)["resourceVersion"] = strconv.Itoa(s.version)
		s.emit(key, found, "DELETED")
	}
}

func (s *Server) put(key string, stored object, event string) {
	s.version++
	stored["metadata"].(object)["resourceVersion"] = strconv.Itoa(s.version)
	// A copy with the types of JSON.
	var copied object
	text, _ := json.Marshal(stored)
	_ = json.Unmarshal(text, &copied)
	s.objects[key] = copied
	s.emit(key, copied, event)
}

func (s *Server) emit(key string, changed object, event string) {
	text, _ := json.Marshal(object{"type": event, "object": typed(key, changed)})
	text = append(text, '\n')
	for w := range s.watchers {
		if w.shows(key, changed) {
			w.events <- text
		}
	}
}

func (w *watcher) shows(key string, changed object) bool {
	return w.kind == path.Dir(key) && (w.name == "" || w.name == path.Base(key)) && selects(w.label, changed)
}

func selects(label string, changed object) bool {
	name, value, _ := strings.Cut(label, "=")
	return label == "" || str(changed, "metadata", "labels", name) == value
}

func (s *Server) list(kind, label string) *http.Response {
	items := []any{}
	for key, found := range s.objects {
		if path.Dir(key) == kind && selects(label, found) {
			items = append(items, typed(key, found))
		}
	}
	list := object{"metadata": object{"resourceVersion": strconv.Itoa(s.version)}, "items": items}
	if kind == "leases" {
		list["apiVersion"], list["kind"] = "lessor.dev/v1alpha1", "LeaseList"
	} else {
		list["apiVersion"], list["kind"] = "v1", "ConfigMapList"
	}
	return reply(200, list)
}

func (s *Server) watch(request *http.Request, kind string) *http.Response {
	query := request.URL.Query()
	if query.Get("sendInitialEvents") != "" {
		return Status(422, "Invalid", "", "sendInitialEvents is not supported", "")
	}
	reader, writer := io.Pipe()
	w := &watcher{
		kind: kind, label: query.Get("labelSelector"), name: strings.TrimPrefix(query.Get("fieldSelector"), "metadata.name="),
		body: writer, events: make(chan []byte, 10_000), done: make(chan struct{}),
	}
	s.watchers[w] = struct{}{}
	// What happened since the version from which the client watches isn't kept: at most a deletion, or the object as it is now.
	since, _ := strconv.Atoi(query.Get("resourceVersion"))
	for key, found := range s.objects {
		version, _ := strconv.Atoi(str(found, "metadata", "resourceVersion"))
		if version > since && w.shows(key, found) {
			text, _ := json.Marshal(object{"type": "ADDED", "object": typed(key, found)})
			w.events <- append(text, '\n')
		}
	}
	if w.name != "" && since > 0 && s.objects[kind+"/"+w.name] == nil {
		_ = writer.CloseWithError(io.EOF)
	}
	go func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.watchers, w)
			_ = writer.Close()
		}()
		for {
			select {
			case event := <-w.events:
				if _, err := writer.Write(event); err != nil {
					return
				}
			case <-request.Context().Done():
				return
			case <-w.done:
				return
			}
		}
	}()
	return &http.Response{StatusCode: 200, Header: header(), Body: reader, Request: request}
}

// Status is an answer of the API server that carries a Status.
func Status(code int, reason, name, message, cause string) *http.Response {
	details := object{"name": name}
	if cause != "" {
		details["causes"] = []any{object{"field": cause}}
	}
	status := object{
		"apiVersion": "v1", "kind": "Status", "code": code, "reason": reason, "message": message, "details": details,
		"status": map[bool]string{true: "Success", false: "Failure"}[code < 300],
	}
	return reply(code, status)
}

func reply(code int, body object) *http.Response {
	text, _ := json.Marshal(body)
	return &http.Response{StatusCode: code, Header: header(), Body: io.NopCloser(bytes.NewReader(text))}
}

func header() http.Header {
	return http.Header{"Content-Type": {"application/json"}, "Date": {time.Now().UTC().Format(http.TimeFormat)}}
}

func typed(key string, stored object) object {
	copied := maps.Clone(stored)
	if strings.HasPrefix(key, "leases/") {
		copied["apiVersion"], copied["kind"] = "lessor.dev/v1alpha1", "Lease"
	} else {
		copied["apiVersion"], copied["kind"] = "v1", "ConfigMap"
	}
	return copied
}

// merge applies a JSON merge patch.
func merge(into, patch object) {
	for key, value := range patch {
		nested, isObject := value.(object)
		present, wasObject := into[key].(object)
		switch {
		case value == nil:
			delete(into, key)
		case isObject && wasObject:
			merge(present, nested)
		default:
			into[key] = value
		}
	}
}

func str(in object, path ...string) string {
	for _, field := range path[:len(path)-1] {
		in, _ = in[field].(object)
	}
	text, _ := in[path[len(path)-1]].(string)
	return text
}
