//! Waits until a time, if there is one.

use std::future;
use tokio::time::{Instant, sleep_until};

/// Waits until `deadline`; forever if it is `None`.
pub(super) async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => future::pending().await,
    }
}
