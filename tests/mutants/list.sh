# What must not go unnoticed: single changes, each of which breaks a promise.
#
#     mutant NAME FINDER FILE OLD NEW
#
# OLD stands in FILE once. In NEW, @ is true for this mutant alone: all of them are built at once, and a run chooses one.
# FINDER is what is asked first: `unit PART OF A NAME`, `model` or `simulation`. What it doesn't find the others may.
# What has moved or changed its words is said, and fails the run: mend the list, then.

mutant 'an end is committed without a resourceVersion' 'unit operator::server' src/operator/server.rs \
  '"metadata": {"uid": uid.to_string(), "resourceVersion": version.to_string()},
                    "status": status,' \
  '"metadata": (if @ { json!({"uid": uid.to_string()}) } else { json!({"uid": uid.to_string(), "resourceVersion": version.to_string()}) }),
                    "status": status,'

mutant 'an object is deleted whatever its version is' 'unit operator::server' src/operator/server.rs \
  'resource_version: Some(version.to_string())' 'resource_version: (!@).then(|| version.to_string())'

mutant 'a lease is deleted whatever its uid is' 'unit operator::server' src/operator/server.rs \
  'uid: Some(uid.to_string()), resource_version: None' 'uid: (!@).then(|| uid.to_string()), resource_version: None'

mutant 'keys are removed by a patch that is bound to the uid alone' 'unit operator::replica' src/operator/attached.rs \
  '"resourceVersion": object.version.to_string(),' '"resourceVersion": (!@).then(|| object.version.to_string()),'

mutant 'nothing is read again after a conflict' 'unit operator::replica' src/operator/replica/answers.rs \
  'entry.stale = true;' 'entry.stale = !@;'

mutant 'an ended lease does not linger' 'unit operator::replica' src/operator/leases.rs \
  'more.linger_until = Some(now.mono + settings.linger)' \
  'more.linger_until = Some(now.mono + if @ { Duration::ZERO } else { settings.linger })'

mutant 'a lease is released while something is attached' 'unit operator::replica' src/operator/step.rs \
  'if self.attached != Attached::default() {' 'if !@ && self.attached != Attached::default() {'

mutant 'a kind that cannot be seen holds up no release' 'unit operator::replica' src/operator/replica/next.rs \
  'linger_until: entry.linger_until().max(self.sights.blind_until(&place.namespace, now)),' \
  'linger_until: if @ { entry.linger_until() } else { entry.linger_until().max(self.sights.blind_until(&place.namespace, now)) },'

mutant 'what is attached once the release was sent goes too' 'unit operator::replica' src/operator/replica/next.rs \
  ' && !entry.releasing' ' && (@ || !entry.releasing)'

mutant 'the finalizer comes after the grant' 'unit operator::replica' src/operator/step.rs \
  'if !record.has_finalizer && !self.settings.dry_run {' 'if !@ && !record.has_finalizer && !self.settings.dry_run {'

mutant 'renewals are not seen' 'unit operator::replica' src/operator/leases.rs \
  'change.renewed = old.is_renewed_by(new);' 'change.renewed = !@ && old.is_renewed_by(new);'

mutant 'a deadline is counted from the time that the holder names' 'unit operator::replica' src/operator/leases.rs \
  'expect(new, self.lessor.renew_with(uid, ttl.into(), now.lease));' \
  'let named = new.renew_time.as_deref().and_then(|named| named.parse::<k8s_openapi::jiff::Timestamp>().ok()).filter(|_| @);
            let ago = |named| Duration::try_from(now.wall.duration_since(named)).unwrap_or_default();
            let since = named.map_or(now.lease, |named| now.lease - ago(named));
            expect(new, self.lessor.renew_with(uid, ttl.into(), since));'

mutant 'renewals are forgotten at a cold start' 'unit operator::recovery' src/operator/recovery.rs \
  'let mut last = granted_at(record, recorded).max(recorded.renewed);' \
  'let mut last = granted_at(record, recorded).max(recorded.renewed.filter(|_| !@));'

mutant 'the grant is forgotten at a cold start' 'unit operator::recovery' src/operator/recovery.rs \
  '    record.status.grant.map(|grant| from_millis(grant.time)).max(' \
  '    if @ { return None; }
    record.status.grant.map(|grant| from_millis(grant.time)).max('

mutant 'a grant counts at a cold start from the time that its sender names' 'unit operator::recovery' src/operator/recovery.rs \
  '.max(recorded.granted)' '.max(recorded.granted.filter(|_| !@))'

mutant 'a grant is written under the name of all other writes' 'unit operator::server' src/operator/server.rs \
  'let write = if grants {' 'let write = if grants && !@ {'

mutant 'nothing is allowed for the clocks of API servers at a cold start' 'unit operator::recovery' src/operator/recovery.rs \
  'let slack = RESOLUTION + settings.max_clock_skew;' \
  'let slack = if @ { Duration::ZERO } else { RESOLUTION + settings.max_clock_skew };'

mutant 'a start with nothing known has no grace' 'unit operator::recovery' src/operator/recovery.rs \
  'let grace = settings.start_grace.saturating_sub(now.lease.since(LeaseTime::ZERO));' \
  'let grace = if @ { Duration::ZERO } else { settings.start_grace.saturating_sub(now.lease.since(LeaseTime::ZERO)) };'

mutant 'the grace of a start passes while the server is not heard' 'unit operator::recovery' src/operator/recovery.rs \
  'settings.start_grace.saturating_sub(now.lease' 'settings.start_grace.saturating_sub(if @ { now.mono } else { Duration::ZERO }).saturating_sub(now.lease'

mutant 'a follower takes a server that hangs for a primary that is gone' 'unit operator::replica' src/operator/replica/act.rs \
  'if self.leading.is_some() || self.settings.dry_run {' 'if self.leading.is_some() || self.settings.dry_run || @ {'

mutant 'a follower asks whether the server is heard only after a deadline' 'unit operator::replica' src/operator/replica/act.rs \
  'let missed = now.mono + (deadline - LATE).since(now.lease);' \
  'let missed = now.mono + (if @ { deadline + LATE } else { deadline - LATE }).since(now.lease);'

mutant 'a primary shows itself before a deadline only when its writer lease has lapsed' 'unit operator::replica' src/operator/replica/act.rs \
  'self.writer.show(now.mono);' 'if !@ { self.writer.show(now.mono); }'

mutant 'a slow answer is no sign of an outage' 'unit lessor::clock' src/lessor/clock.rs \
  'mono.saturating_sub(sent) > Self::PATIENCE' '!@ && mono.saturating_sub(sent) > Self::PATIENCE'

mutant 'a server that takes long for each answer is taken for a silent one' 'unit lessor::clock' src/lessor/clock.rs \
  'Self::is_slow(self.last_answer, mono)' '(@ || Self::is_slow(self.last_answer, mono))'

mutant 'an answer excuses a later request of the same moment' 'unit lessor::clock' src/lessor/clock.rs \
  '(*other, *id) > (sent, request)' 'if @ { *other > sent } else { (*other, *id) > (sent, request) }'

mutant 'a pause of the replica itself is taken for rest' 'unit lessor::clock' src/lessor/clock.rs \
  'if !Self::is_slow(due, mono) {' 'if @ || !Self::is_slow(due, mono) {'

mutant 'an end is committed on an old sign of life' 'unit operator::replica' src/operator/replica/act.rs \
  'Step::Act(Act::End(_)) if now.silence > FRESH =>' 'Step::Act(Act::End(_)) if !@ && now.silence > FRESH =>'

mutant 'a follower takes over on what its watch shows, without a fresh look' 'unit operator::replica' src/operator/arbitration.rs \
  'Reason::Overdue(work) => Move::Check(work),' \
  'Reason::Overdue(_) if @ => self.write_claim(said),
            Reason::Overdue(work) => Move::Check(work),'

mutant 'work under way goes on after a demotion' 'unit operator::replica' src/operator/replica/role.rs \
  'self.cancel_flights(now);' 'if !@ { self.cancel_flights(now); }'

mutant 'a promotion moves the deadlines' 'unit lessor::' src/lessor/leases.rs \
  'self.shift = self.shift.saturating_add(Ttl::from(extend).as_millis()).min(ZERO);' \
  'self.shift = self.shift.saturating_add(Ttl::from(extend).as_millis() + if @ { 10_000 } else { 0 }).min(ZERO);'

mutant 'what was attached to a lease outlives it' 'unit lessor::' src/lessor/leases.rs \
  'Ok(self.take_items(items))' 'Ok(if @ { Vec::new() } else { self.take_items(items) })'

mutant 'the index keeps what was removed' 'unit lessor::' src/lessor/table.rs \
  'index.remove(key, |other| other == at);' 'if !@ { index.remove(key, |other| other == at); }'

mutant 'an end that failed is not tried again' 'unit lessor::' src/lessor/ends.rs \
  'let again = self.try_again(n, now);' 'if @ { return None; } let again = self.try_again(n, now);'

mutant 'a lease ends without a look at what it follows' 'unit operator::replica' src/operator/step.rs \
  'Some(following) if following.unread && !held.capped =>' 'Some(following) if !@ && following.unread && !held.capped =>'

mutant 'what was read before an outage was noticed counts for an end after it' 'unit operator::replica' src/operator/replica/follow.rs \
  'let due = now.mono.saturating_sub(now.lease.since(deadline));' \
  'let due = if @ { deadline.since_start() } else { now.mono.saturating_sub(now.lease.since(deadline)) };'

mutant 'what was read first of a long chain is too old when the last was' 'unit operator::replica' src/operator/replica/follow.rs \
  'more.and_then(|more| more.confirming)' 'more.filter(|_| !@).and_then(|more| more.confirming)'

mutant 'nobody asks for signs of life after an outage' 'unit operator::replica' src/operator/replica/act.rs \
  'self.watchful_until = now.mono + WATCHFUL;' 'self.watchful_until = now.mono + WATCHFUL * u32::from(!@);'

mutant 'the writes of one lease that fail stop the time of all' 'unit operator::hearing' src/operator/hearing.rs \
  'Some(Target::Lease) if status.is_server_error() =>' 'Some(Target::Lease) if !@ && status.is_server_error() =>'

mutant 'nothing is written for sure before a lease ends' 'unit operator::replica' src/operator/replica/act.rs \
  'hand_out(now.lease - unshown, now)' 'hand_out(if @ { now.lease } else { now.lease - unshown }, now)'

mutant 'time runs while the server cannot write' 'unit lessor::clock' src/lessor/clock.rs \
  'self.held = self.held.max(mono.saturating_sub(since));' 'if !@ { self.held = self.held.max(mono.saturating_sub(since)); }'

mutant 'followers are not told what was held since nothing could be written' 'unit operator::replica' src/operator/replica/act.rs \
  '|| self.holds_unsaid(now)' '|| !@ && self.holds_unsaid(now)'

mutant 'followers do not hold what the primary has held' 'unit operator::replica' src/operator/replica/observe.rs \
  'self.out.hold += missed;' 'if !@ { self.out.hold += missed; }'

mutant 'each replica has its own account of what remains of a suspended lease' 'unit operator::replica' src/operator/leases.rs \
  '.filter(|_| change.status_written && !self.lessor.is_primary())' '.filter(|_| !@ && change.status_written && !self.lessor.is_primary())'

mutant 'a new primary removes before it has written to the lease' 'unit operator::replica' src/operator/replica/next.rs \
  'record.status.term.unwrap_or_default() < term' '!@ && record.status.term.unwrap_or_default() < term'

mutant 'time runs while what a lease follows cannot be seen' 'unit operator::follow' src/operator/follow/view.rs \
  'Self::Unseen(_) => Standing::Held,' 'Self::Unseen(_) if !@ => Standing::Held,'

mutant 'any Pod of the name keeps a lease alive' 'unit operator::follow' src/operator/follow/followers.rs \
  'match *follower.pin.get_or_insert(pod) == pod {' 'match @ || *follower.pin.get_or_insert(pod) == pod {'
