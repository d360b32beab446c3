//! The header `Retry-After` of a response, which kube's errors don't carry.

use std::{cell::Cell, time::Duration};

use http::{Response, header::RETRY_AFTER};

tokio::task_local! {
    static NOTED: Cell<Option<Duration>>;
}

/// Sends a request. Returns its result, and the `Retry-After` of the last response.
pub async fn noting<T>(exchange: impl Future<Output = T>) -> (T, Option<Duration>) {
    NOTED
        .scope(Cell::new(None), async {
            let result = exchange.await;
            (result, NOTED.with(Cell::get))
        })
        .await
}

/// Notes the header of a response, for the request that this task sends.
pub(super) fn note<B>(response: &Response<B>) {
    let seconds =
        response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    // Requests of other parts of the operator note nothing.
    let _ = NOTED.try_with(|noted| noted.set(seconds.map(Duration::from_secs)));
}
