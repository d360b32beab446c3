package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Finalizer keeps a lease until everything attached to it is removed.
const Finalizer = "lessor.dev/revoke"

// EndedMessage is part of the API server's error for a renewal after the end.
const EndedMessage = "lease has ended: grant a new one"

// Annotations of attached objects.
const (
	// LeaseAnnotation names the lease to which a whole object is attached.
	LeaseAnnotation = "lessor.dev/lease"
	// KeysAnnotation is a JSON object that names the lease of each key.
	KeysAnnotation = "lessor.dev/keys"
	// KeyAnnotationPrefix precedes a key in the name of the annotation that attaches it.
	KeyAnnotationPrefix = "key.lessor.dev/"
)

// Types of the conditions of a lease.
const (
	// ConditionActive is True from the grant to the end. Its reason is the state of the lease in one word.
	ConditionActive = "Active"
	// ConditionExpiring is True while at most spec.warnBeforeSeconds remain.
	ConditionExpiring = "Expiring"
	// ConditionFollowing is True while the source of spec.renewFrom keeps the lease alive.
	ConditionFollowing = "Following"
	// ConditionReleased is True once everything attached is removed.
	ConditionReleased = "Released"
)

// Reasons of the condition Active.
const (
	// ReasonGranted means that the lease is active, and its TTL runs.
	ReasonGranted = "Granted"
	// ReasonSuspended means that the lease is active, and its TTL is paused.
	ReasonSuspended = "Suspended"
	// ReasonExpired means that the lease has ended because its time was over.
	ReasonExpired = "Expired"
	// ReasonRevoked means that the lease was deleted before its time was over.
	ReasonRevoked = "Revoked"
)

// Lease is granted for a TTL, and ends when its holder stops renewing it. Annotations attach objects, or single keys of
// objects, to the lease; they are deleted when it ends.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Lease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the lease that its holder requests.
	Spec LeaseSpec `json:"spec"`
	// Status is written by the primary.
	Status LeaseStatus `json:"status,omitzero"`
}

// LeaseList is a list of leases.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type LeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Lease `json:"items"`
}

// LeaseSpec is the lease that its holder requests.
type LeaseSpec struct {
	// TTLSeconds is how long the lease lives after its last renewal. The granted TTL is at least the operator's minimum
	// (5 seconds by default) and at most its maximum: see LeaseStatus.GrantedTTLSeconds. A change of TTLSeconds renews the
	// lease, like a change of RenewTime.
	TTLSeconds int64 `json:"ttlSeconds"`
	// RenewTime renews the lease by each of its changes. It is RFC 3339 with up to nine decimals. The value itself has no
	// effect, so the clocks of clients don't matter. An unchanged value renews nothing. Once set, it can't be removed.
	RenewTime *string `json:"renewTime,omitempty"`
	// Holder is who renews the lease, for information.
	Holder *string `json:"holder,omitempty"`
	// MaxLifetimeSeconds ends the lease at most this many seconds after its grant, even if it is renewed.
	MaxLifetimeSeconds *int64 `json:"maxLifetimeSeconds,omitempty"`
	// Suspend pauses the TTL at LeaseStatus.RemainingSeconds while it is true.
	Suspend bool `json:"suspend,omitempty"`
	// WarnBeforeSeconds makes the condition Expiring True when at most this many seconds remain.
	WarnBeforeSeconds *int64 `json:"warnBeforeSeconds,omitempty"`
	// AfterExpiry is whether the operator deletes the lease after it has expired and everything attached to it is removed
	// (the default), or keeps it for inspection.
	AfterExpiry AfterExpiry `json:"afterExpiry,omitempty"`
	// RenewFrom is a source that keeps the lease alive besides its holder. It costs no writes. Changing it renews nothing.
	RenewFrom *RenewFrom `json:"renewFrom,omitempty"`
}

// AfterExpiry is what happens to an expired lease once everything attached to it is removed.
//
// +enum
type AfterExpiry string

const (
	// AfterExpiryDelete deletes it. This is the default.
	AfterExpiryDelete AfterExpiry = "Delete"
	// AfterExpiryRetain keeps it until a user deletes it.
	AfterExpiryRetain AfterExpiry = "Retain"
)

// RenewFrom is the source that keeps a lease alive: exactly one of these.
type RenewFrom struct {
	// CoordinationLease is a Lease of coordination.k8s.io in the same namespace, such as one for leader election. Each
	// change of its renewTime renews this lease.
	CoordinationLease *SourceName `json:"coordinationLease,omitempty"`
	// Node is a node, each heartbeat of which renews this lease.
	Node *SourceName `json:"node,omitempty"`
	// Pod is a Pod in the same namespace. The lease doesn't expire as long as the Pod is alive.
	Pod *PodSource `json:"pod,omitempty"`
	// Lease is another Lease of lessor.dev in the same namespace, each renewal of which renews this lease.
	Lease *SourceName `json:"lease,omitempty"`
}

// SourceName is a source by its name.
type SourceName struct {
	// Name is the name of the source.
	Name string `json:"name"`
}

// PodSource is a Pod as a source.
type PodSource struct {
	// Name is the name of the Pod.
	Name string `json:"name"`
	// UID is the uid of the Pod. The default is the uid of the Pod with this name at the grant.
	UID *string `json:"uid,omitempty"`
	// OnLoss is what happens to the lease once the Pod is deleted, has finished, or is replaced by another of its name.
	OnLoss OnLoss `json:"onLoss,omitempty"`
}

// OnLoss is what happens to a lease whose Pod is lost.
//
// +enum
type OnLoss string

const (
	// OnLossRunOut lets the TTL run from then on. This is the default.
	OnLossRunOut OnLoss = "RunOut"
	// OnLossEnd ends the lease at once.
	OnLossEnd OnLoss = "End"
)

// LeaseStatus is the state of a lease, written by the primary.
type LeaseStatus struct {
	// Conditions are Active (with the reasons Granted, Suspended, Expired, Revoked), Expiring, Following and Released.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// SpecGeneration is the generation of the spec at the last write of this status. Renewals change the generation, and the
	// status isn't written at every renewal, so this is usually less than metadata.generation.
	SpecGeneration *int64 `json:"specGeneration,omitempty"`
	// GrantedTTLSeconds is the granted TTL.
	GrantedTTLSeconds *int64 `json:"grantedTTLSeconds,omitempty"`
	// GrantTime is when the lease was granted, by the API server's clock.
	GrantTime *metav1.MicroTime `json:"grantTime,omitempty"`
	// ExpiryTime is a time before which the lease doesn't expire. It may expire later, because this field isn't updated at
	// every renewal. It is absent while the lease is suspended, and while a source keeps it alive.
	ExpiryTime *metav1.MicroTime `json:"expiryTime,omitempty"`
	// EndTime is when the lease ended. Once it is set, the API server rejects renewals.
	EndTime *metav1.MicroTime `json:"endTime,omitempty"`
	// RemainingSeconds are the remaining seconds while the lease is suspended, rounded up.
	RemainingSeconds *int64 `json:"remainingSeconds,omitempty"`
	// LeaseUID is the uid of the lease that this status was written for. A status of another lease, which a backup tool has restored,
	// is ignored and replaced: see Lease.OwnStatus.
	LeaseUID *string `json:"leaseUID,omitempty"`
	// Primary is the replica of the operator that wrote this status.
	Primary *string `json:"primary,omitempty"`
	// Term is the term of the primary that wrote this status. It never decreases.
	Term *int64 `json:"term,omitempty"`
	// FencingToken is greater than the token of every earlier lease of this name. A lease alone is not a mutex: a system that
	// it protects must reject a token smaller than one it has accepted.
	FencingToken *int64 `json:"fencingToken,omitempty"`
	// Attached is how much is removed when the lease ends. It isn't updated at once.
	Attached *Attached `json:"attached,omitempty"`
	// Follows is the source that keeps the lease alive besides its holder.
	Follows *Follows `json:"follows,omitempty"`
}

// Attached is how much is attached to a lease.
type Attached struct {
	// Objects is the number of whole objects.
	Objects int64 `json:"objects"`
	// Keys is the number of keys of other objects.
	Keys int64 `json:"keys"`
}

// Follows is the source that a lease follows.
type Follows struct {
	// Source is the source, like node/worker-1 or pod/web-0.
	Source string `json:"source"`
	// UID is the uid of the followed Pod. A Pod with the same name and another uid is another Pod.
	UID *string `json:"uid,omitempty"`
}

// Lessor names the primary replica of the operator, which is the only one that grants and ends leases. The operator creates
// it, and writes it only when the primary changes or has to confirm that it is alive; it is not a heartbeat.
//
// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Lessor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status is the primary, and what it publishes.
	Status LessorStatus `json:"status,omitzero"`
}

// LessorList is a list of Lessors.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type LessorList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Lessor `json:"items"`
}

// LessorStatus is the primary, and what it publishes.
type LessorStatus struct {
	// Conditions are conditions of the operator as a whole.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Primary is the name of the primary replica. If it is empty or absent, any replica may become primary.
	Primary *string `json:"primary,omitempty"`
	// Term increases by one with each takeover, and never decreases. A lease rejects status writes with a term lower than
	// its own.
	Term *int64 `json:"term,omitempty"`
	// AcquireTime is when the primary acquired this term.
	AcquireTime *metav1.MicroTime `json:"acquireTime,omitempty"`
	// ProvedTime is when the primary last confirmed that it is alive, after it had been idle.
	ProvedTime *metav1.MicroTime `json:"provedTime,omitempty"`
	// Transitions is the number of changes of the primary.
	Transitions *int64 `json:"transitions,omitempty"`
	// Leases is the number of leases at the last write of this status.
	Leases *int64 `json:"leases,omitempty"`
	// ChallengedBy is the replica that asks whether the primary is alive: by its own knowledge a lease should have ended. The primary
	// removes this when it answers.
	ChallengedBy *string `json:"challengedBy,omitempty"`
	// ChallengeTime is when that replica asked.
	ChallengeTime *metav1.MicroTime `json:"challengeTime,omitempty"`
	// Overdue is the number of leases whose time was over when the primary last answered, and which it could not end yet. It is
	// absent if there was none.
	Overdue *int64 `json:"overdue,omitempty"`
	// Namespaces are the namespaces that this installation serves; * stands for all. Of installations that overlap, one that names
	// a namespace serves it rather than one for all, and among equals the one with the older Lessor.
	//
	// +listType=atomic
	Namespaces []string `json:"namespaces,omitempty"`
	// Version is the version of the operator that is, or last was, primary.
	Version *string `json:"version,omitempty"`
}
