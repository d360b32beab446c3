package v1alpha1

import "k8s.io/apimachinery/pkg/api/meta"

// OwnStatus returns the status, or an empty one if it was written for another lease, as after a restore from a backup.
func (l *Lease) OwnStatus() LeaseStatus {
	if l.Status.LeaseUID != nil && *l.Status.LeaseUID != string(l.UID) {
		return LeaseStatus{}
	}
	return l.Status
}

// Granted reports whether the lease was ever granted.
func (l *Lease) Granted() bool {
	return l.OwnStatus().SpecGeneration != nil
}

// Ended reports whether the lease has ended. An end is final.
func (l *Lease) Ended() bool {
	return l.OwnStatus().EndTime != nil
}

// Active reports whether the lease is granted and hasn't ended. It stays true for a lease that is being revoked, until the
// primary has committed the end.
func (l *Lease) Active() bool {
	return !l.Ended() && meta.IsStatusConditionTrue(l.OwnStatus().Conditions, ConditionActive)
}

// Expiring reports whether the lease is active and at most spec.warnBeforeSeconds remain.
func (l *Lease) Expiring() bool {
	return l.Active() && meta.IsStatusConditionTrue(l.OwnStatus().Conditions, ConditionExpiring)
}

// State returns the reason of the condition Active: the state of the lease in one word. It is empty before the grant.
func (l *Lease) State() string {
	if active := meta.FindStatusCondition(l.OwnStatus().Conditions, ConditionActive); active != nil {
		return active.Reason
	}
	return ""
}
