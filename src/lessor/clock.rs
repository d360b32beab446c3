//! Temporary.
use super::LeaseTime;
use std::{collections::BTreeMap, time::Duration};
#[derive(Debug, Default)]
pub struct LeaseClock {
    held: Duration,
    life: Duration,
    suspect: bool,
    out: BTreeMap<u64, Duration>,
}
const SLOW: Duration = Duration::from_secs(1);
impl LeaseClock {
    pub fn is_deaf(&self, mono: Duration) -> bool {
        self.suspect || self.out.values().min().is_some_and(|s| mono > (*s).max(self.life) + SLOW)
    }
    pub fn now(&self, mono: Duration) -> LeaseTime {
        let t = if self.is_deaf(mono) { self.life } else { mono };
        LeaseTime::from_duration(t.saturating_sub(self.held))
    }
    pub fn last_heard(&self) -> Duration {
        self.life
    }
    pub fn sent(&mut self, id: u64, mono: Duration) {
        self.out.insert(id, mono);
    }
    pub fn answered(&mut self, id: u64, mono: Duration) {
        let Some(s) = self.out.remove(&id) else { return };
        if self.suspect || mono > s + SLOW {
            self.held += mono - self.life;
        }
        self.suspect = false;
        self.life = mono;
    }
    pub fn failed(&mut self, id: u64, _mono: Duration) {
        self.out.remove(&id);
        self.suspect = true;
    }
    pub fn heard(&mut self, mono: Duration) {
        if !self.suspect {
            self.life = mono;
        }
    }
    pub fn broke(&mut self, _mono: Duration) {
        self.suspect = true;
    }
}
