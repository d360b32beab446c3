# What must not go unnoticed: single changes, each of which breaks a promise.
#
#     mutant NAME FILE OLD NEW
#
# OLD stands in FILE once. What has moved or changed its words is said, and fails the run: mend the list, then.

mutant 'the end is committed without a resourceVersion' src/operator/server.rs \
  '"metadata": {"uid": uid.to_string(), "resourceVersion": version.to_string()},' \
  '"metadata": {"uid": uid.to_string()},'

mutant 'the API server accepts a lower term' tests/simulation/server.rs \
  'if before["term"].is_i64()' 'if false && before["term"].is_i64()'

mutant 'an object is deleted whatever its version is' src/operator/server.rs \
  'resource_version: Some(version.to_string())' 'resource_version: None'

mutant 'keys are removed by a patch that is bound to the uid alone' src/operator/attached.rs \
  '"resourceVersion": object.version.to_string(),' ''

mutant 'nothing is read again after a conflict' src/operator/replica/answers.rs \
  'entry.stale = true;' ''

mutant 'an ended lease does not linger' src/operator/leases.rs \
  'entry.linger_until = now.mono + settings.linger;' 'entry.linger_until = now.mono;'

mutant 'a lease is released while something is attached' src/operator/step.rs \
  'if self.attached != Attached::default() {' 'if false {'

mutant 'a kind that cannot be seen holds up no release' src/operator/replica/next.rs \
  'linger_until: entry.linger_until.max(self.sights.blind_until(&place.namespace, now)),' \
  'linger_until: entry.linger_until,'

mutant 'what is attached once the release was sent goes too' src/operator/replica/next.rs \
  ' && !entry.releasing' ''

mutant 'the finalizer comes after the grant' src/operator/step.rs \
  'if !record.has_finalizer() && !self.settings.dry_run {' 'if false {'

mutant 'renewals are not seen' src/operator/leases.rs \
  'change.renewed = old.is_renewed_by(new);' 'change.renewed = false;'

mutant 'renewals are forgotten at a cold start' src/operator/leases.rs \
  'let last = granted.max(recorded.renewed);' 'let last = granted;'

mutant 'nothing is allowed for the clocks of API servers at a cold start' src/operator/leases.rs \
  'let slack = RESOLUTION + settings.max_clock_skew;' 'let slack = Duration::ZERO;'

mutant 'a start with nothing known has no grace' src/operator/leases.rs \
  'let grace = settings.start_grace.saturating_sub(now.mono);' 'let grace = Duration::ZERO;'

mutant 'a slow answer is no sign of an outage' src/lessor/clock.rs \
  'mono.saturating_sub(sent) > self.patience' 'false && mono.saturating_sub(sent) > self.patience'

mutant 'an end is committed on an old sign of life' src/operator/replica/act.rs \
  'Step::Act(Act::End(_)) if now.silence > FRESH =>' 'Step::Act(Act::End(_)) if false =>'

mutant 'a follower takes over without a fresh look' src/operator/arbitration.rs \
  'Reason::Overdue(work) => Move::Check(work),' 'Reason::Overdue(_) => self.write_claim(leases, now),'

mutant 'work under way goes on after a demotion' src/operator/replica/role.rs \
  'self.cancel_flights(now);' ''
