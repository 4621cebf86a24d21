//! The shard of one rank: it receives pushes and serves parameters, on the service thread.
//!
//! ```text
//! push   start len clock, delta of len elements   →
//! pull   start len settled                        → version, len parameters
//! ```
//!
//! Starts count from the beginning of the shard. Deltas and parameters are f32, or messages of the server codecs.
//! `settled` is a clock: all pushes of all ranks before it have arrived.

use super::shard_layout::ShardLayout;
use super::update::{Push, Update};
use crate::asynchronous::service::{
    ElementsPayload, Handler, ReceivedPayload, Reply, Request, Served, ServiceMember, TaskLock, violation,
};
use crate::encoding::MessageSender;
use crate::{Buffer, DType, Part, Result};
use hexagram_physical::runtime::Work;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(super) const PUSH: u16 = 0;
pub(super) const PULL: u16 = 1;

/// One shard, with its pushes and pulls.
pub(super) struct Shard {
    terms: Arc<ShardLayout>,
    /// Elements of the whole vector in this shard.
    range: Range<usize>,
    /// True if deltas are applied in the order of clocks, and then ranks.
    ordered: bool,
    state: TaskLock<ShardState>,
}

struct ShardState {
    parameters: Buffer,
    /// Number of applied pushes.
    version: u64,
    update: Box<dyn Update>,
    /// Pushes by clock and rank, in the order of arrival.
    waiting: BTreeMap<(u64, usize), Vec<Delta>>,
    /// All parameters as a message, and their version.
    image: Option<(u64, ElementsPayload)>,
}

/// A delta that a rank has pushed.
struct Delta {
    from: usize,
    clock: u64,
    /// Elements of the shard.
    part: Range<usize>,
    message: Arc<Buffer>,
    bytes: usize,
}

impl Shard {
    pub(super) fn new(
        terms: Arc<ShardLayout>,
        range: Range<usize>,
        parameters: Buffer,
        update: Box<dyn Update>,
        ordered: bool,
    ) -> Self {
        let waiting = BTreeMap::new();
        let image = None;
        let state = TaskLock::new(ShardState { parameters, version: 0, update, waiting, image });
        Shard { terms, range, ordered, state }
    }

    /// Returns the parameters, including all pushes before the clock `settled`.
    pub(super) async fn parameters(&self, settled: u64) -> Result<Vec<f32>> {
        let state = &mut *self.state.enter().await;
        self.catch_up(state, settled)?;
        Ok(state.parameters.host::<f32>()?.to_vec())
    }

    /// Returns the elements of the shard that a request addresses.
    fn part(&self, from: &ServiceMember, request: &Request) -> Result<Range<usize>> {
        let [start, len, _] = request.arguments.map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        match start.checked_add(len) {
            Some(end) if end <= self.range.len() => Ok(start..end),
            _ => Err(violation(&from.peer, "parameters that are not of this shard")),
        }
    }

    fn push(&self, from: &ServiceMember, request: &Request, payload: &ReceivedPayload) -> Result<Reply> {
        let part = self.part(from, request)?;
        let clock = request.arguments[2];
        if self.terms.pushed.is_none() && payload.bytes != part.len() * size_of::<f32>() {
            return Err(violation(&from.peer, "a delta whose length differs from the request"));
        }
        let message = Arc::clone(&payload.buffer);
        let bytes = payload.bytes;
        let delta = Delta { from: from.rank, clock, part, message, bytes };
        let state = &mut *self.state.lock();
        if self.ordered {
            state.waiting.entry((clock, from.rank)).or_default().push(delta);
        } else {
            self.apply(state, delta)?;
        }
        Ok(Reply::empty())
    }

    fn pull(&self, from: &ServiceMember, request: &Request) -> Result<Reply> {
        let part = self.part(from, request)?;
        let state = &mut *self.state.lock();
        self.catch_up(state, request.arguments[2])?;
        let payload = Some(self.image(state, part)?);
        Ok(Reply { arguments: [state.version, 0], payload })
    }

    /// Applies the pushes before the clock `settled`, if the order matters.
    fn catch_up(&self, state: &mut ShardState, settled: u64) -> Result<()> {
        let later = state.waiting.split_off(&(settled, 0));
        let due = std::mem::replace(&mut state.waiting, later);
        due.into_values().flatten().try_for_each(|delta| self.apply(state, delta))
    }

    fn apply(&self, state: &mut ShardState, delta: Delta) -> Result<()> {
        let Delta { from, clock, part, message, bytes } = delta;
        let range = self.range.start + part.start..self.range.start + part.end;
        let len = part.len();
        let push = Push { from, clock, range };
        let decoded = match &self.terms.pushed {
            None => message,
            Some(codec) => {
                let decoded = self.terms.values.take_len(len)?;
                let message = Part::of(&message, 0..bytes);
                let sender = MessageSender::aside(&self.terms.peers[from]);
                sender.decode(&**codec, message, None, Part::of(&decoded, 0..len))?;
                decoded
            }
        };
        let bytes = len * size_of::<f32>();
        if state.parameters.queue().computes(|| Work::Kernel { bytes: 3 * bytes }) {
            let elements = decoded.host::<f32>()?;
            state.update.apply(&mut state.parameters.host_mut::<f32>()?[part], &elements[..len], &push);
        }
        state.version += 1;
        Ok(())
    }

    /// Returns some parameters as a message. The message of the whole shard is made once per version, for all pulls.
    fn image(&self, state: &mut ShardState, part: Range<usize>) -> Result<ElementsPayload> {
        let whole = part.len() == self.range.len();
        if let Some((version, image)) = &state.image
            && whole
            && *version == state.version
        {
            return Ok(image.clone());
        }
        // So that the pool can reuse the previous message.
        state.image = None;
        let len = part.len();
        let start = self.range.start + part.start;
        let elements = self.terms.values.take_len(len)?;
        elements.write(0..len)?.copy_from(&state.parameters.read(part)?)?;
        let image = match &self.terms.pulled {
            None => ElementsPayload { buffer: elements, len },
            Some(encoding) => {
                let buffer = self.terms.pull_room(len)?;
                let from = Part::of(&elements, 0..len);
                let seed = encoding.draw(&[state.version, start as u64]);
                let sender = MessageSender::aside(self.terms.me());
                let len = sender.encode(&**encoding.codec(), start, from, Part::whole(&buffer), seed)?;
                ElementsPayload { buffer, len }
            }
        };
        if whole {
            state.image = Some((state.version, image.clone()));
        }
        Ok(image)
    }
}

impl Handler for Shard {
    fn admit(&self, from: &ServiceMember, request: &Request) -> Result<Arc<Buffer>> {
        request.expect(&self.terms.fingerprint, &from.peer)?;
        let len = self.part(from, request)?.len();
        match request.verb {
            PUSH => self.terms.push_room(len),
            _ => Buffer::zeroed(DType::U8, 0).map(Arc::new),
        }
    }

    fn serve(&self, from: &ServiceMember, request: &Request, payload: &ReceivedPayload) -> Result<Served> {
        match request.verb {
            PUSH => self.push(from, request, payload).map(Served::Done),
            PULL => self.pull(from, request).map(Served::Done),
            _ => Err(request.unknown(&from.peer)),
        }
    }
}
