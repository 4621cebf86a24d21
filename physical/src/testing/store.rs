//! A key-value store for ranks that are threads of one process: [`SharedMap`].

use crate::bootstrap::Store;
use crate::runtime;
use std::collections::HashMap;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Key-value store in memory, for tests.
///
/// ```
/// # use hexagram_physical::testing::SharedMap;
/// # use hexagram_physical::{JoinOptions, World};
/// let store = SharedMap::default();
/// std::thread::scope(|scope| {
///     for rank in 0..2 {
///         let store = &store;
///         scope.spawn(move || {
///             let world = World::join_through(store, rank, 2, &JoinOptions::default()).unwrap();
///             assert_eq!((world.rank(), world.local_size()), (rank, 2));
///         });
///     }
/// });
/// ```
#[derive(Default)]
pub struct SharedMap {
    values: Mutex<HashMap<String, Vec<u8>>>,
    more: Condvar,
}

impl SharedMap {
    /// Returns the keys that have a value, in order.
    pub fn keys(&self) -> Vec<String> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys: Vec<String> = values.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }
}

impl Store for SharedMap {
    fn put(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.insert(key.to_owned(), value.to_vec());
        self.more.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, limit: Duration) -> io::Result<Vec<u8>> {
        let is_missing = |values: &mut HashMap<_, _>| !values.contains_key(key);
        let values = runtime::wait_while(&self.more, &self.values, limit, is_missing);
        values.get(key).cloned().ok_or_else(|| io::ErrorKind::TimedOut.into())
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Ok(())
    }
}
