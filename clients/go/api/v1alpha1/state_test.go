package v1alpha1

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheStatusOfAnotherLeaseIsIgnored(t *testing.T) {
	own, other := "1", "2"
	for _, uid := range []*string{nil, &own, &other} {
		lease := &Lease{ObjectMeta: metav1.ObjectMeta{UID: "1"}}
		generation := int64(1)
		lease.Status = LeaseStatus{
			LeaseUID: uid, SpecGeneration: &generation, EndTime: &metav1.MicroTime{Time: time.Now()},
			Conditions: []metav1.Condition{{Type: ConditionActive, Status: metav1.ConditionFalse, Reason: ReasonExpired}},
		}
		counts := uid != &other
		if lease.Granted() != counts || lease.Ended() != counts || (lease.State() == ReasonExpired) != counts {
			t.Errorf("granted: %v, ended: %v, state: %q", lease.Granted(), lease.Ended(), lease.State())
		}
	}
}
