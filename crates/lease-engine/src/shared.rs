//! The lessor as the original offers it: shared, persistent, with a stream of what has expired.

use std::{collections::HashSet, error, future::poll_fn, hash::Hash, sync::Arc, time::Duration};

use futures::{
    Stream,
    channel::{mpsc, oneshot},
    future::{self, FutureExt},
    stream,
};
use parking_lot::Mutex;

use super::{
    Config, Counts, Error, Granted, IdSource, ItemDeleter, Lease, LeaseTime, Lessor, Store, Timer, Ttl,
};

/// A [`Lessor`] behind a lock, with what it needs from outside: a [`Timer`], a [`Store`], an [`ItemDeleter`].
///
/// Leases persist before they are granted, and what is attached to them is deleted before they are forgotten.
/// No lock is held while items are deleted, except the deleter's own. Clones are the same lessor. For a
/// lessor without items, `K` is `()`.
pub struct SharedLessor<I, K, S, D> {
    inner: Arc<Inner<I, K, S, D>>,
}

struct Inner<I, K, S, D> {
    timer: Box<dyn Timer>,
    guarded: Mutex<Guarded<I, K, S>>,
    deleter: Mutex<D>,
}

struct Guarded<I, K, S> {
    lessor: Lessor<I, K>,
    store: S,
    /// Leases of which the store holds less than the full TTL: their next renewal has to be saved.
    checkpointed: HashSet<I>,
    stopped: bool,
    /// Those who wait for the next end, and until when.
    waiting: Vec<oneshot::Sender<()>>,
    waiting_until: LeaseTime,
}

/// Why a shared lessor refuses, or fails.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The lessor refuses.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The store can't be relied on: nothing has changed, ask again.
    #[error("can't persist the lease: {0}")]
    Store(Box<dyn error::Error + Send + Sync>),
    /// An item may still be there: the lease is still ending, and is offered again after a pause.
    #[error("can't delete what is attached: {0}")]
    Delete(Box<dyn error::Error + Send + Sync>),
}

impl<I, K, S, D> Clone for SharedLessor<I, K, S, D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<I, K, S, D> SharedLessor<I, K, S, D>
where
    I: Copy + Eq + Hash + Send,
    K: Clone + Eq + Hash + Send,
    S: Store<I>,
    D: ItemDeleter<K>,
{
    /// A follower with the leases that the store holds, each with what remained of it.
    ///
    /// # Errors
    /// [`SharedError::Store`] if it can't be read, [`SharedError::Refused`] if it holds a lease twice.
    pub fn recover(
        config: Config,
        timer: impl Timer + 'static,
        mut store: S,
        deleter: D,
    ) -> Result<Self, SharedError> {
        let mut lessor = Lessor::new(config);
        let mut checkpointed = HashSet::new();
        let now = timer.now();
        for record in store.load().map_err(store_error)? {
            lessor.restore(record.id, record.ttl, record.remaining, now)?;
            if record.suspended {
                lessor.suspend(record.id, now)?;
            }
            lessor.set_end_by(record.id, record.end_in.map(|left| now + left))?;
            if record.remaining < record.ttl.as_duration() {
                checkpointed.insert(record.id);
            }
        }
        let guarded = Guarded {
            lessor,
            store,
            checkpointed,
            stopped: false,
            waiting: Vec::new(),
            waiting_until: LeaseTime::NEVER,
        };
        let (guarded, deleter) = (Mutex::new(guarded), Mutex::new(deleter));
        Ok(Self { inner: Arc::new(Inner { timer: Box::new(timer), guarded, deleter }) })
    }

    /// Grants a lease, once it persists. See [`Lessor::grant`].
    ///
    /// # Errors
    /// [`SharedError::Refused`], [`SharedError::Store`].
    pub fn grant(&self, id: I, ttl: Ttl) -> Result<Granted, SharedError> {
        self.with(|guarded, now| {
            let granted = guarded.lessor.grant(id, ttl, now)?;
            if let Err(error) = guarded.save(id, now) {
                guarded.lessor.ended(id)?;
                return Err(error);
            }
            Ok(granted)
        })
    }

    /// Grants a lease under an id from this source, and answers it.
    ///
    /// # Errors
    /// As [`grant`](Self::grant).
    pub fn grant_new(&self, ids: &mut impl IdSource<I>, ttl: Ttl) -> Result<(I, Granted), SharedError> {
        let id = ids.next_id();
        Ok((id, self.grant(id, ttl)?))
    }

    /// Renews a lease. Costs the store nothing, unless it holds less than a full TTL of this lease. See
    /// [`Lessor::renew`].
    ///
    /// # Errors
    /// [`SharedError::Refused`]; [`SharedError::Store`], and then the lease may be renewed, but not for sure
    /// across a restart.
    pub fn renew(&self, id: I) -> Result<Granted, SharedError> {
        self.with(|guarded, now| {
            let granted = guarded.lessor.renew(id, now)?;
            if guarded.checkpointed.contains(&id) {
                guarded.save(id, now)?;
                guarded.checkpointed.remove(&id);
            }
            Ok(granted)
        })
    }

    /// Ends a lease now: deletes what is attached to it, then forgets it. Also the way to finish an end that
    /// [`expired`](Self::expired) has offered.
    ///
    /// # Errors
    /// [`SharedError::Refused`] on a follower, or without such a lease; [`SharedError::Delete`] and
    /// [`SharedError::Store`]: the end is offered again.
    pub fn revoke(&self, id: I) -> Result<(), SharedError> {
        let items: Vec<K> = self.with(|guarded, now| {
            guarded.lessor.begin_revoke(id, now)?;
            Ok::<_, Error>(guarded.lessor.items(id).cloned().collect())
        })?;
        let deleted = self.delete(id, &items);
        self.with(|guarded, now| {
            let ended = deleted.and_then(|()| guarded.store.remove(id).map_err(store_error));
            if ended.is_err() {
                guarded.lessor.failed(id, now);
                return ended;
            }
            guarded.checkpointed.remove(&id);
            guarded.lessor.ended(id)?;
            Ok(())
        })
    }

    /// All items are tried, so that one that can't be deleted doesn't keep the others.
    fn delete(&self, id: I, items: &[K]) -> Result<(), SharedError> {
        let mut result = Ok(());
        for item in items {
            // Whoever attaches it elsewhere meanwhile, wins.
            if self.lease_of(item) == Some(id)
                && let Err(error) = self.inner.deleter.lock().delete(item)
            {
                result = Err(SharedError::Delete(Box::new(error)));
            }
        }
        result
    }

    /// The primary has ended a lease: forgets it, and deletes nothing. For followers.
    ///
    /// # Errors
    /// [`SharedError::Refused`] without such a lease, [`SharedError::Store`].
    pub fn forget(&self, id: I) -> Result<(), SharedError> {
        self.with(|guarded, _| {
            guarded.store.remove(id).map_err(store_error)?;
            guarded.checkpointed.remove(&id);
            guarded.lessor.ended(id)?;
            Ok(())
        })
    }

    /// Attaches an item; the answer is whose it was. See [`Lessor::attach`].
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, id: I, item: K) -> Result<Option<I>, Error> {
        self.with(|guarded, _| guarded.lessor.attach(id, item))
    }

    /// Detaches an item, if it's attached to this lease. See [`Lessor::detach`].
    ///
    /// # Errors
    /// As there.
    pub fn detach(&self, id: I, item: &K) -> Result<bool, Error> {
        self.with(|guarded, _| guarded.lessor.detach(id, item))
    }

    /// The lease that an item is attached to.
    pub fn lease_of(&self, item: &K) -> Option<I> {
        self.inner.guarded.lock().lessor.lease_of(item)
    }

    /// Becomes primary. See [`Lessor::promote`].
    pub fn promote(&self, extend: Duration) {
        self.with(|guarded, _| guarded.lessor.promote(extend));
    }

    /// Becomes a follower. See [`Lessor::demote`].
    pub fn demote(&self) {
        self.with(|guarded, _| guarded.lessor.demote());
    }

    /// The lease with this id.
    pub fn lookup(&self, id: I) -> Option<Lease<I>> {
        self.inner.guarded.lock().lessor.lookup(id)
    }

    /// All leases, those that end first first.
    pub fn leases(&self) -> Vec<Lease<I>> {
        self.inner.guarded.lock().lessor.leases_by_deadline()
    }

    /// How long a lease lives unless something happens.
    pub fn remaining(&self, id: I) -> Option<Duration> {
        self.with(|guarded, now| guarded.lessor.remaining(id, now))
    }

    /// How many leases and items there are, and how many ends are under way.
    pub fn counts(&self) -> Counts {
        self.inner.guarded.lock().lessor.counts()
    }

    /// Ends that were offered and not answered yet, oldest first, and since when: a stuck one shows here.
    pub fn unanswered(&self) -> Vec<(I, LeaseTime)> {
        self.inner.guarded.lock().lessor.unanswered().collect()
    }

    /// Saves what remains of each lease, so that a restart doesn't give them all a full TTL again. O(n); call
    /// it as often as that may be off.
    ///
    /// # Errors
    /// [`SharedError::Store`], at the first lease that can't be saved.
    pub fn checkpoint(&self) -> Result<(), SharedError> {
        self.with(|guarded, now| {
            let ids: Vec<_> = guarded.lessor.leases().map(|lease| lease.id).collect();
            for id in ids {
                guarded.checkpointed.insert(id);
                guarded.save(id, now)?;
            }
            Ok(())
        })
    }

    /// Ends every stream and channel of expired leases. Leases stay as they are.
    pub fn stop(&self) {
        self.with(|guarded, _| {
            guarded.stopped = true;
            guarded.waiting.clear();
        });
    }

    /// The leases that expire, one by one, in the order of their deadlines. It sleeps until the next
    /// deadline; the end of a lease begins when the stream is asked for the next one. Finish each with
    /// [`revoke`](Self::revoke), or give it back with [`failed`](Self::failed).
    pub fn expired(&self) -> impl Stream<Item = I> + use<I, K, S, D> {
        stream::unfold(self.clone(), |this| async move {
            let id = this.next_expired(1).await?.pop()?;
            Some((id, this))
        })
    }

    /// Sends the leases that expire into a bounded channel, at most `batch` at once, until
    /// [`stop`](Self::stop) or until nobody receives. While the channel is full no end begins: fullness
    /// delays, and loses nothing.
    pub async fn send_expired(&self, mut channel: mpsc::Sender<Vec<I>>, batch: usize) {
        while poll_fn(|cx| channel.poll_ready(cx)).await.is_ok() {
            let Some(ids) = self.next_expired(batch.max(1)).await else { return };
            if let Err(refused) = channel.try_send(ids) {
                refused.into_inner().into_iter().for_each(|id| self.failed(id));
            }
        }
    }

    /// The end of a lease has failed: it's offered again after a pause. See [`Lessor::failed`].
    pub fn failed(&self, id: I) {
        self.with(|guarded, now| guarded.lessor.failed(id, now));
    }

    async fn next_expired(&self, limit: usize) -> Option<Vec<I>> {
        loop {
            let (wake, woken) = oneshot::channel();
            let sleep = {
                let mut guarded = self.inner.guarded.lock();
                if guarded.stopped {
                    return None;
                }
                let expired = guarded.lessor.poll(self.inner.timer.now(), limit);
                if !expired.is_empty() {
                    return Some(expired);
                }
                let wakeup = guarded.lessor.next_wakeup();
                guarded.waiting_until = wakeup.unwrap_or(LeaseTime::NEVER);
                guarded.waiting.retain(|waiting| !waiting.is_canceled());
                guarded.waiting.push(wake);
                wakeup.map_or_else(|| future::pending().boxed(), |at| self.inner.timer.sleep_until(at))
            };
            future::select(sleep, woken).await;
        }
    }

    /// Does something to the lessor, and wakes those who wait if an end has come nearer.
    fn with<T>(&self, act: impl FnOnce(&mut Guarded<I, K, S>, LeaseTime) -> T) -> T {
        let mut guarded = self.inner.guarded.lock();
        let result = act(&mut guarded, self.inner.timer.now());
        if guarded.lessor.next_wakeup().is_some_and(|at| at < guarded.waiting_until) {
            guarded.waiting.clear();
        }
        result
    }
}

impl<I: Copy + Eq + Hash, K, S: Store<I>> Guarded<I, K, S> {
    fn save(&mut self, id: I, now: LeaseTime) -> Result<(), SharedError> {
        let record = self.lessor.record(id, now).ok_or(Error::LeaseNotFound)?;
        self.store.save(&record).map_err(store_error)
    }
}

fn store_error(error: impl error::Error + Send + Sync + 'static) -> SharedError {
    SharedError::Store(Box::new(error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::StreamExt;

    use super::*;
    use crate::{IdGenerator, ManualTimer, MemoryItems, MemoryStore, Record};

    type Shared<D = MemoryItems<&'static str>> = SharedLessor<u64, &'static str, MemoryStore<u64>, D>;

    const TTL: Ttl = Ttl::from_secs(10);

    fn at(millis: u64) -> LeaseTime {
        LeaseTime::from_millis(millis)
    }

    fn primary_with<D: ItemDeleter<&'static str>>(timer: &ManualTimer, deleter: D) -> Shared<D> {
        let shared = Shared::recover(Config::default(), timer.clone(), MemoryStore::default(), deleter);
        let shared = shared.unwrap();
        shared.promote(Duration::ZERO);
        shared
    }

    fn primary() -> (Shared, ManualTimer) {
        let timer = ManualTimer::default();
        (primary_with(&timer, MemoryItems(["a", "b", "c"].into())), timer)
    }

    #[test]
    fn the_stream_sleeps_until_the_next_deadline() {
        let (shared, timer) = primary();
        let mut expired = Box::pin(shared.expired());
        assert_eq!(expired.next().now_or_never(), None);
        shared.grant(1, TTL).unwrap();
        assert_eq!(expired.next().now_or_never(), None);
        timer.set(at(9_999));
        assert_eq!(expired.next().now_or_never(), None);
        assert_eq!(timer.next_sleeper(), Some(at(10_000)));
        timer.set(at(10_000));
        assert_eq!(expired.next().now_or_never(), Some(Some(1)));
    }

    #[tokio::test]
    async fn a_nearer_deadline_wakes_who_sleeps_already() {
        let (shared, timer) = primary();
        shared.grant(1, TTL).unwrap();
        let mut expired = Box::pin(shared.expired());
        let next = tokio::spawn(async move { expired.next().await });
        tokio::task::yield_now().await;
        shared.grant(2, Ttl::from_secs(1)).unwrap();
        tokio::task::yield_now().await;
        timer.set(at(1000));
        assert_eq!(next.await.unwrap(), Some(2));
    }

    #[test]
    fn stopping_ends_the_stream() {
        let (shared, _) = primary();
        let mut expired = Box::pin(shared.expired());
        assert_eq!(expired.next().now_or_never(), None);
        shared.stop();
        assert_eq!(expired.next().now_or_never(), Some(None));
    }

    #[tokio::test]
    async fn a_full_channel_delays_and_loses_nothing() {
        let (shared, timer) = primary();
        for id in 0..10 {
            shared.grant(id, TTL).unwrap();
        }
        timer.set(at(10_000));
        let (sender, mut receiver) = mpsc::channel(0);
        let running = tokio::spawn({
            let shared = shared.clone();
            async move { shared.send_expired(sender, 3).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(shared.counts().ending, 3, "those that found no room have not begun to end");
        assert!(shared.renew(9).is_ok());
        let mut received = Vec::new();
        while received.len() < 9 {
            received.extend(receiver.next().await.unwrap());
        }
        assert_eq!(received, (0..9).collect::<Vec<_>>());
        shared.stop();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn ends_that_nobody_receives_are_offered_again() {
        let (shared, timer) = primary();
        shared.grant(1, TTL).unwrap();
        let (sender, receiver) = mpsc::channel(1);
        let running = tokio::spawn({
            let shared = shared.clone();
            async move { shared.send_expired(sender, 3).await }
        });
        tokio::task::yield_now().await;
        drop(receiver);
        timer.set(at(10_000));
        running.await.unwrap();
        timer.set(at(11_000));
        assert_eq!(Box::pin(shared.expired()).next().now_or_never(), Some(Some(1)));
    }

    #[test]
    fn a_revoke_deletes_what_is_attached() {
        let (shared, _) = primary();
        shared.grant(1, TTL).unwrap();
        shared.attach(1, "a").unwrap();
        shared.attach(1, "b").unwrap();
        shared.detach(1, &"b").unwrap();
        shared.revoke(1).unwrap();
        assert_eq!(shared.inner.deleter.lock().0, ["b", "c"].into());
        assert!(matches!(shared.revoke(1), Err(SharedError::Refused(Error::LeaseNotFound))));
    }

    /// Refuses to delete "a" as often as told.
    struct Stubborn(u32, Vec<&'static str>);

    impl ItemDeleter<&'static str> for Stubborn {
        type Error = std::io::Error;

        fn delete(&mut self, item: &&'static str) -> Result<(), Self::Error> {
            if *item == "a" && self.0 > 0 {
                self.0 -= 1;
                return Err(std::io::Error::other("not now"));
            }
            self.1.push(item);
            Ok(())
        }
    }

    #[test]
    fn an_item_that_cannot_be_deleted_keeps_neither_the_others_nor_other_leases() {
        let timer = ManualTimer::default();
        let shared = primary_with(&timer, Stubborn(1, Vec::new()));
        for (id, item) in [(1, "a"), (1, "b"), (2, "c")] {
            let _ = shared.grant(id, TTL);
            shared.attach(id, item).unwrap();
        }
        timer.set(at(10_000));
        let mut expired = Box::pin(shared.expired());
        assert_eq!(expired.next().now_or_never(), Some(Some(1)));
        assert!(matches!(shared.revoke(1), Err(SharedError::Delete(_))));
        assert_eq!(expired.next().now_or_never(), Some(Some(2)));
        shared.revoke(2).unwrap();
        assert_eq!(shared.inner.deleter.lock().1, ["b", "c"]);
        assert_eq!(shared.counts().ending, 1);
        timer.set(at(11_000));
        assert_eq!(expired.next().now_or_never(), Some(Some(1)));
        shared.revoke(1).unwrap();
        assert_eq!(shared.counts(), Counts::default());
    }

    #[test]
    fn a_lease_that_cannot_be_kept_is_not_granted() {
        struct Broken;
        impl Store<u64> for Broken {
            type Error = std::io::Error;
            fn save(&mut self, _: &Record<u64>) -> Result<(), Self::Error> {
                Err(std::io::Error::other("disk full"))
            }
            fn remove(&mut self, _: u64) -> Result<(), Self::Error> {
                Ok(())
            }
            fn load(&mut self) -> Result<Vec<Record<u64>>, Self::Error> {
                Ok(Vec::new())
            }
        }
        let timer = ManualTimer::default();
        let shared = SharedLessor::recover(Config::default(), timer, Broken, MemoryItems::<u8>([].into()));
        let shared = shared.unwrap();
        assert!(matches!(shared.grant(1, TTL), Err(SharedError::Store(_))));
        assert_eq!(shared.counts(), Counts::default());
    }

    /// Stops the lessor and starts it anew, an hour of other clocks later.
    fn restart(shared: Shared) -> (Shared, ManualTimer) {
        let store = shared.inner.guarded.lock().store.clone();
        let timer = ManualTimer::default();
        timer.set(at(3_600_000));
        let shared =
            Shared::recover(Config::default(), timer.clone(), store, MemoryItems([].into())).unwrap();
        shared.promote(Duration::ZERO);
        (shared, timer)
    }

    #[test]
    fn what_remained_at_the_last_checkpoint_remains_after_a_restart() {
        let (shared, timer) = primary();
        shared.grant(1, TTL).unwrap();
        shared.grant(2, TTL).unwrap();
        timer.set(at(4000));
        shared.checkpoint().unwrap();
        timer.set(at(5000));
        shared.renew(2).unwrap();
        let (shared, _) = restart(shared);
        assert_eq!(shared.remaining(1), Some(Duration::from_secs(6)));
        assert_eq!(shared.remaining(2), Some(Duration::from_secs(10)), "renewed after the checkpoint");
    }

    #[test]
    fn revoked_leases_do_not_come_back_after_a_restart() {
        let (shared, _) = primary();
        shared.grant(1, TTL).unwrap();
        shared.grant(2, TTL).unwrap();
        shared.revoke(1).unwrap();
        let (shared, _) = restart(shared);
        assert_eq!(shared.leases().iter().map(|lease| lease.id).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn ids_come_from_a_source() {
        let (shared, _) = primary();
        let mut ids = IdGenerator::new(1, 0);
        let (a, _) = shared.grant_new(&mut ids, TTL).unwrap();
        let (b, _) = shared.grant_new(&mut ids, TTL).unwrap();
        assert_ne!(a, b);
        assert!(shared.lookup(a).is_some() && shared.lookup(b).is_some());
    }
}
