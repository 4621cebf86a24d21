//! Key-value store of one generation, through which its ranks meet.

use super::messages::ProcessId;
use hexagram_physical::launcher::{MAX_SIZE, MemberNotice, MemberRequest};
use std::collections::HashMap;

/// Most keys of one generation: two for each rank, and the announcement.
const MOST_KEYS: usize = 2 * MAX_SIZE + 1;

/// Values by key, and the processes that wait for one.
#[derive(Default)]
pub(super) struct Values {
    values: HashMap<String, Vec<u8>>,
    /// Process, number of its request, and key.
    waiting: Vec<(ProcessId, usize, String)>,
}

impl Values {
    /// Serves a request of a process, and returns the answers. Requests of other generations than the newest are ignored.
    pub(super) fn request(
        &mut self,
        newest: u64,
        process: ProcessId,
        request: MemberRequest,
    ) -> Vec<(ProcessId, MemberNotice)> {
        match request {
            MemberRequest::Put { generation, key, value }
                if generation == newest && self.values.len() < MOST_KEYS =>
            {
                let answers = self.take_waiting(&key, &value);
                self.values.insert(key, value);
                answers
            }
            MemberRequest::Get { generation, request, key } if generation == newest => {
                // A process waits for one key at a time.
                self.forget(process);
                match self.values.get(&key) {
                    Some(value) => vec![(process, MemberNotice::Value { request, value: value.clone() })],
                    None => {
                        self.waiting.push((process, request, key));
                        Vec::new()
                    }
                }
            }
            MemberRequest::Remove { generation, key } if generation == newest => {
                self.values.remove(&key);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn take_waiting(&mut self, key: &str, value: &[u8]) -> Vec<(ProcessId, MemberNotice)> {
        let answered = self.waiting.extract_if(.., |(.., awaited)| awaited == key);
        answered
            .map(|(process, request, _)| (process, MemberNotice::Value { request, value: value.to_vec() }))
            .collect()
    }

    /// Drops the requests of a process.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.waiting.retain(|(waiting, ..)| *waiting != process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_returned_now_or_once_it_is_there_and_only_in_its_generation() {
        let key = || "k".to_owned();
        let mut values = Values::default();
        let get = |request| MemberRequest::Get { generation: 2, request, key: key() };
        let put = |generation| MemberRequest::Put { generation, key: key(), value: vec![7] };
        assert!(values.request(2, 1, get(5)).is_empty());
        assert!(values.request(2, 0, put(1)).is_empty());
        let answer = |process, request| vec![(process, MemberNotice::Value { request, value: vec![7] })];
        assert_eq!(values.request(2, 0, put(2)), answer(1, 5));
        assert_eq!(values.request(2, 3, get(1)), answer(3, 1));
        values.request(2, 0, MemberRequest::Remove { generation: 2, key: key() });
        assert!(values.request(2, 3, get(2)).is_empty());
        values.forget(3);
        assert!(values.request(2, 0, put(2)).is_empty());
    }
}
