# What must not go unnoticed: single changes, each of which breaks a promise.
#
#     mutant NAME FINDER FILE OLD NEW
#
# OLD stands in FILE once. In NEW, @ is true for this mutant alone: all of them are built at once, and a run chooses one.
# FINDER is what is asked first: the unit tests of a crate (`core`, `engine`, `writer`, `operator`), all or with a part of their
# names, `model` or `simulation`. What it doesn't find the others may. Where OLD isn't there once, `run.sh --check` fails and
# prints it: adapt the list then.

mutant 'an end is committed without a resourceVersion' 'operator requests' src/runtime/requests.rs \
  '"metadata": {"uid": uid.to_string(), "resourceVersion": version.to_string()},
                    "status": status,' \
  '"metadata": (if @ { json!({"uid": uid.to_string()}) } else { json!({"uid": uid.to_string(), "resourceVersion": version.to_string()}) }),
                    "status": status,'

mutant 'an object is deleted whatever its version is' 'operator requests' src/runtime/requests.rs \
  'resource_version: Some(version.to_string())' 'resource_version: (!@).then(|| version.to_string())'

mutant 'a lease is deleted whatever its uid is' 'operator requests' src/runtime/requests.rs \
  'uid: Some(uid.to_string()), resource_version: None' 'uid: (!@).then(|| uid.to_string()), resource_version: None'

mutant 'keys are removed by a patch that is bound to the uid alone' 'core removal' crates/core/src/decide/removal.rs \
  '"resourceVersion": object.version.to_string(),' '"resourceVersion": (!@).then(|| object.version.to_string()),'

mutant 'nothing is read again after a conflict' 'core replica' crates/core/src/replica/response.rs \
  'entry.stale = true;' 'entry.stale = !@;'

mutant 'an ended lease does not linger' 'core replica' crates/core/src/index/leases.rs \
  'more.linger_until = Some(now.mono.saturating_add(settings.linger));
            more.end_unseen = false;' \
  'more.linger_until = Some(now.mono.saturating_add(if @ { Duration::ZERO } else { settings.linger }));
            more.end_unseen = false;'

mutant 'a lease is released while something is attached' 'core replica' crates/core/src/decide/lease.rs \
  'if self.attached != Attached::default() {' 'if !@ && self.attached != Attached::default() {'

mutant 'a kind that cannot be watched delays no release' 'core replica' crates/core/src/replica/enqueue.rs \
  'linger_until: entry.linger_until().max(blocked_until),' \
  'linger_until: entry.linger_until().max(if @ { Duration::ZERO } else { blocked_until }),'

mutant 'what is attached once the release was sent goes too' 'core replica' crates/core/src/replica/index.rs \
  'ended && !entry.releasing &&' 'ended && (@ || !entry.releasing) &&'

mutant 'the finalizer comes after the grant' 'core replica' crates/core/src/decide/lease.rs \
  'if !record.has_finalizer && !self.settings.dry_run {' 'if !@ && !record.has_finalizer && !self.settings.dry_run {'

mutant 'renewals are ignored' 'core replica' crates/core/src/index/leases.rs \
  'change.renewed = old.is_renewed_by(new);' 'change.renewed = !@ && old.is_renewed_by(new);'

mutant 'a deadline is counted from the time that the holder names' 'core replica' crates/core/src/index/leases.rs \
  'expect(new, self.lessor.renew_with(uid, ttl.into(), now.lease));' \
  'let named = new.renew_time.as_deref().and_then(|named| named.parse::<k8s_openapi::jiff::Timestamp>().ok()).filter(|_| @);
            let ago = |named| Duration::try_from(now.wall.duration_since(named)).unwrap_or_default();
            let since = named.map_or(now.lease, |named| now.lease - ago(named));
            expect(new, self.lessor.renew_with(uid, ttl.into(), since));'

mutant 'renewals are forgotten at a cold start' 'core cold_start' crates/core/src/decide/cold_start.rs \
  'let mut last = granted_at(record, recorded).max(recorded.renewed);' \
  'let mut last = granted_at(record, recorded).max(recorded.renewed.filter(|_| !@));'

mutant 'the grant is forgotten at a cold start' 'core cold_start' crates/core/src/decide/cold_start.rs \
  '    record.status.grant.map(|grant| from_millis(grant.time)).max(' \
  '    if @ { return None; }
    record.status.grant.map(|grant| from_millis(grant.time)).max('

mutant 'a grant counts at a cold start from the time that its sender names' 'core cold_start' crates/core/src/decide/cold_start.rs \
  '.max(recorded.granted)' '.max(recorded.granted.filter(|_| !@))'

mutant 'a grant is written under the name of all other writes' 'operator requests' src/runtime/requests.rs \
  'let write = if grants {' 'let write = if grants && !@ {'

mutant 'nothing is allowed for the clocks of API servers at a cold start' 'core cold_start' crates/core/src/decide/cold_start.rs \
  'let slack = RESOLUTION.saturating_add(settings.max_clock_skew);' \
  'let slack = if @ { Duration::ZERO } else { RESOLUTION.saturating_add(settings.max_clock_skew) };'

mutant 'a start that recovers nothing has no grace period' 'core cold_start' crates/core/src/decide/cold_start.rs \
  'let left = |grace: Duration| grace.saturating_sub(' \
  'let left = |grace: Duration| if @ { Duration::ZERO } else { grace }.saturating_sub('

mutant 'the grace period of a start passes while the API server does not respond' 'core cold_start' crates/core/src/decide/cold_start.rs \
  '.saturating_sub(now.lease.since(LeaseTime::ZERO));' \
  '.saturating_sub(if @ { now.mono } else { Duration::ZERO }).saturating_sub(now.lease.since(LeaseTime::ZERO));'

mutant 'a lease of a long TTL has no longer grace period' 'core cold_start' crates/core/src/settings.rs \
  'self.start_grace.max((ttl / 3)' 'self.start_grace.max((ttl / if @ { u32::MAX } else { 3 })'

mutant 'a renewal that is not recorded is forgotten at a cold start' 'core cold_start' crates/core/src/decide/cold_start.rs \
  'if recorded.incomplete {' 'if recorded.incomplete && !@ {'

mutant 'a changed cap is computed anew by wall clocks' 'core replica' crates/core/src/decide/cold_start.rs \
  '(Some(before), Some(after), Some(known)) =>' '(Some(before), Some(after), Some(known)) if !@ =>'

mutant 'a follower takes an API server that hangs for a primary that is gone' 'core replica' crates/core/src/replica/dispatch.rs \
  'let follows = !self.leadership.is_primary() &&' \
  'let follows = !@ && !self.leadership.is_primary() &&'

mutant 'a follower probes the API server only after a deadline' 'core replica' crates/core/src/liveness/mod.rs \
  'let missed = expiry::mono_of(deadline - LATE, now);' \
  'let missed = expiry::mono_of(if @ { deadline + LATE } else { deadline - LATE }, now);'

mutant 'a primary proves itself before a deadline only when its writer lease has lapsed' 'core replica' crates/core/src/replica/dispatch.rs \
  'self.leadership.prove_soon(now.mono);' 'if !@ { self.leadership.prove_soon(now.mono); }'

mutant 'a slow response is no sign of an outage' 'engine clock' crates/lease-engine/src/clock.rs \
  'mono.saturating_sub(sent) > Self::PATIENCE' '!@ && mono.saturating_sub(sent) > Self::PATIENCE'

mutant 'an API server with slow responses counts as unreachable' 'engine clock' crates/lease-engine/src/clock.rs \
  'Self::is_slow(self.last_answer, mono)' '@ || Self::is_slow(self.last_answer, mono)'

mutant 'a response also answers a later request of the same moment' 'engine clock' crates/lease-engine/src/clock.rs \
  '(*other, *id) > (sent, request)' 'if @ { *other > sent } else { (*other, *id) > (sent, request) }'

mutant 'a pause of the replica itself is taken for rest' 'engine clock' crates/lease-engine/src/clock.rs \
  'if !Self::is_slow(due, mono) {' 'if @ || !Self::is_slow(due, mono) {'

mutant 'an end is committed without a recent response' 'core expiry' crates/core/src/decide/expiry.rs \
  'if now.since_last_response > RECENT {' 'if !@ && now.since_last_response > RECENT {'

mutant 'a follower takes over by its watch cache, without a fresh read' 'core leadership' crates/core/src/leadership/election.rs \
  'Reason::Overdue(work) => ElectionStep::Check(work),' \
  'Reason::Overdue(_) if @ => self.write_claim(statement),
            Reason::Overdue(work) => ElectionStep::Check(work),'

mutant 'work under way goes on after a demotion' 'core replica' crates/core/src/replica/role.rs \
  'self.cancel_work(now);' 'if !@ { self.cancel_work(now); }'

mutant 'a promotion moves the deadlines' engine crates/lease-engine/src/engine.rs \
  'self.shift = self.shift.saturating_add(Ttl::from(extend).as_millis()).min(ZERO);' \
  'self.shift = self.shift.saturating_add(Ttl::from(extend).as_millis() + if @ { 10_000 } else { 0 }).min(ZERO);'

mutant 'what was attached to a lease outlives it' engine crates/lease-engine/src/engine.rs \
  'Ok(self.items.take(items))' 'Ok(if @ { Vec::new() } else { self.items.take(items) })'

mutant 'the index keeps what was removed' engine crates/lease-engine/src/table.rs \
  'entry.remove();' 'if !@ { entry.remove(); }'

mutant 'an end that failed is not tried again' engine crates/lease-engine/src/retry.rs \
  'let again = self.try_again(n, now);' \
  'if @ { return None; } let again = self.try_again(n, now);'

mutant 'a lease ends without a look at what it follows' 'core expiry' crates/core/src/decide/expiry.rs \
  'if !evidence.source_read && !evidence.capped {' 'if !@ && !evidence.source_read && !evidence.capped {'

mutant 'what was read before an outage was noticed counts for an end after it' 'core replica' crates/core/src/replica/index.rs \
  'let due = now.mono.saturating_sub(now.lease.since(deadline));' \
  'let due = if @ { deadline.since_start() } else { now.mono.saturating_sub(now.lease.since(deadline)) };'

mutant 'what was read first of a long chain is too old when the last was' 'core replica' crates/core/src/replica/index.rs \
  'more.and_then(|more| more.confirming)' 'more.filter(|_| !@).and_then(|more| more.confirming)'

mutant 'after an outage, no replica probes the API server more often' 'core replica' crates/core/src/liveness/mod.rs \
  'self.watchful_until = now.mono + WATCHFUL_FOR;' 'self.watchful_until = now.mono + WATCHFUL_FOR * u32::from(!@);'

mutant 'an outage uses up the time of what is first observed after it' 'core cold_start' crates/core/src/decide/cold_start.rs \
  'elapsed(from, to).saturating_sub(now.paused())' \
  'elapsed(from, to).saturating_sub(if @ { Duration::ZERO } else { now.paused() })'

mutant 'an edit of a user is the answer to a challenge' 'core replica' crates/core/src/leadership/mod.rs \
  'if self.is_challenged() {
            self.writer.remove(work);' \
  'if !@ && self.is_challenged() {
            self.writer.remove(work);'

mutant 'failing writes of one lease stop the time of all' 'operator connectivity' src/connectivity.rs \
  'Some(OwnKind::Lease) if is_failure =>' \
  'Some(OwnKind::Lease) if !@ && is_failure =>'

mutant 'a lease ends without a recent accepted write' 'core replica' crates/core/src/replica/dispatch.rs \
  'hand_out(expiry::covered_until(self.liveness.last_write(), now), now)' \
  'hand_out(if @ { now.lease } else { expiry::covered_until(self.liveness.last_write(), now) }, now)'

mutant 'time runs while the API server cannot write' 'engine clock' crates/lease-engine/src/clock.rs \
  'self.paused_total = self.paused_total.max(mono.saturating_sub(since));' \
  'if !@ { self.paused_total = self.paused_total.max(mono.saturating_sub(since)); }'

mutant 'a primary does not answer a challenge' 'core replica' crates/core/src/replica/role.rs \
  'if self.leadership.is_primary() && self.leadership.is_challenged() {' \
  'if !@ && self.leadership.is_primary() && self.leadership.is_challenged() {'

mutant 'a primary that is late answers that no lease is due' 'core replica' crates/core/src/replica/role.rs \
  'true if !self.settings.dry_run =>' 'true if !@ && !self.settings.dry_run =>'

mutant 'a follower claims the lead for a late end without a challenge' 'core replica' crates/core/src/replica/role.rs \
  'if by_time {' 'if by_time && !@ {'

mutant 'a follower that knows better leaves the lead to one that does not' 'core replica' crates/core/src/replica/role.rs \
  'self.leadership.await_answer(patience);' 'if !@ { self.leadership.await_answer(patience); }'

mutant 'a replica that has just started claims a vacant Lessor before others' 'core replica' crates/core/src/replica/role.rs \
  'self.leadership.hesitate(hesitation);' 'if !@ { self.leadership.hesitate(hesitation); }'

mutant 'each replica computes on its own what remains of a suspended lease' 'core replica' crates/core/src/index/leases.rs \
  '.filter(|_| change.status_written && !self.lessor.is_primary())' '.filter(|_| !@ && change.status_written && !self.lessor.is_primary())'

mutant 'a new primary removes before it has written to the lease' 'core replica' crates/core/src/replica/index.rs \
  'term.is_some_and(|term| record.status.term.unwrap_or_default() < term)' \
  '!@ && term.is_some_and(|term| record.status.term.unwrap_or_default() < term)'

mutant 'time runs while the source of a lease cannot be watched' 'core sources' crates/core/src/index/sources/follow_state.rs \
  'Self::Unseen(_) => TtlState::Paused,' 'Self::Unseen(_) if !@ => TtlState::Paused,'

mutant 'any Pod of the name keeps a lease alive' 'core sources' crates/core/src/index/sources/followers.rs \
  'match *follower.pin.get_or_insert(pod) == pod {' 'match @ || *follower.pin.get_or_insert(pod) == pod {'

mutant 'a removal is tried again at once though a conflict left the object as it was' 'core replica' crates/core/src/replica/response.rs \
  '*error == RequestError::Conflict && object.note_conflict()' \
  '*error == RequestError::Conflict && object.note_conflict() && !@'

mutant 'a lease is written again at once though a conflict left it as it was' 'core replica' crates/core/src/replica/response.rs \
  'entry.more.change(|more| more.conflict_at.replace(version)) == Some(version)' \
  '!@ && entry.more.change(|more| more.conflict_at.replace(version)) == Some(version)'

mutant 'the Lessor is written again at once though a conflict left it as it was' 'core leadership' crates/core/src/leadership/election.rs \
  'self.conflict_at == Some(known.version)' '!@ && self.conflict_at == Some(known.version)'

mutant 'an object that is gone before the response to its deletion comes back' 'core replica' crates/core/src/replica/observe.rs \
  'if request.object_gone {' 'if !@ && request.object_gone {'

mutant 'work for objects of a kind that is not served any more remains' 'core replica' crates/core/src/replica/kinds.rs \
  'for id in &objects {' 'for id in objects.iter().filter(|_| !@) {'

mutant 'a lease that the primary cannot end is not overdue' 'core replica' crates/core/src/index/leases.rs \
  '.filter(|(_, entry)| entry.handed_out);' '.filter(|(_, entry)| !@ && entry.handed_out);'

mutant 'a watch that brings nothing is not opened again' 'operator watch' src/watch/watcher.rs \
  'match timeout(SILENCE, events.next()).await {' \
  'match timeout(if @ { SILENCE * 4 } else { SILENCE }, events.next()).await {'

mutant 'a start waits for a kind whose initial list never ends' 'operator watch' src/watch/watcher.rs \
  'let mut late = (!was_late).then_some(late_at);' 'let mut late = (!was_late && !@).then_some(late_at);'

mutant 'no patience grows with an API server that begins its responses late' 'operator watch' src/watch/watcher.rs \
  'Err(_) => return state.too_slow("begin its response"),' \
  'Err(_) if @ => return WatchEnd::Failed(late_list()),
            Err(_) => return state.too_slow("begin its response"),'

mutant 'the condition of a release costs a look at all attached objects' 'core replica' crates/core/src/replica/index.rs \
  'let hindered = self.attachments.hindered(lease, LISTED);' \
  'let limit = if @ { self.attachments.of(lease).filter(|(_, it)| it.hindrance().is_some()).count().max(LISTED) } else { LISTED };
        let hindered = self.attachments.hindered(lease, limit);'

mutant 'a lease ends for a Pod of which nothing is known' 'core sources' crates/core/src/index/sources/follow_state.rs \
  'if before.ends_on_loss && !before.named => {' 'if !@ && before.ends_on_loss && !before.named => {'

mutant 'finalizers are detached beside a running operator' 'command detach' src/cli/detach.rs \
  'Canary::AddedAgain => {}' 'Canary::AddedAgain if @ => return Ok(1),
            Canary::AddedAgain => {}'

mutant 'a void token counts as a missing right' 'operator watch' src/watch/watcher.rs \
  'kube::Error::Api(status) if status.code == 401' 'kube::Error::Api(status) if !@ && status.code == 401'

mutant 'the end of a lease does not name the Pod that was lost' 'core replica' crates/core/src/decide/lease.rs \
  '// The Pod that was lost may not have been published yet.
        self.set_follows(&mut status);' 'if !@ { self.set_follows(&mut status); }'
