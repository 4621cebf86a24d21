//! The client side of a server: the pushes and pulls of a rank.

use super::super::pending::Pending;
use super::cache::Cache;
use super::shard::{PULL, PUSH};
use super::shard_layout::ShardRange;
use super::{Pulled, Server};
use crate::asynchronous::service::{ElementsPayload, OutgoingRequest, ReceivedPayload, Response, violation};
use crate::centralized::free_to_write;
use crate::encoding::{FeedbackLink, LinkNames, MessageSender};
use crate::{Buffer, Part, Primitive, Result};
use std::ops::Range;
use std::sync::Arc;

/// Names of the error memory of pushes.
const NAMES: LinkNames = LinkNames { error: "pushed", difference: "pushed" };

impl Server {
    /// Sends `delta` to the shards of the parameters `range`. Returns when `delta` may be changed; a later call
    /// returns the error of a request that fails afterwards.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if the lengths differ; [`Error::NotFinite`](crate::Error::NotFinite) if
    /// the codec refuses `delta`. In both cases no message is sent, and the memory is unchanged.
    pub fn push<'a>(&'a mut self, range: Range<usize>, delta: &'a Buffer) -> Primitive<'a> {
        Box::pin(async move {
            self.terms.check(&range, delta)?;
            let pieces = self.terms.pieces(&range);
            let payloads = match self.terms.pushed {
                Some(_) => self.encode(&pieces, &range, delta)?,
                None => {
                    let copies = pieces.iter().map(|piece| self.copy(piece, &range, delta));
                    copies.collect::<Result<_>>()?
                }
            };
            for (piece, payload) in pieces.iter().zip(payloads) {
                let pending = self.ask(piece, Some(payload), None);
                // The push does not wait for the result, but returns an error that has already occurred.
                if pending.is_done() {
                    pending.await?;
                }
            }
            Ok(())
        })
    }

    fn copy(&self, piece: &ShardRange, range: &Range<usize>, delta: &Buffer) -> Result<ElementsPayload> {
        let len = piece.range.len();
        let buffer = self.terms.values.take_len(len)?;
        buffer.write(0..len)?.copy_from(&delta.read(piece.within(range))?)?;
        Ok(ElementsPayload { buffer, len })
    }

    /// Encodes the messages for the pieces of `delta`, and stores their errors once all are encoded.
    fn encode(
        &mut self,
        pieces: &[ShardRange],
        range: &Range<usize>,
        delta: &Buffer,
    ) -> Result<Vec<ElementsPayload>> {
        let Some(encoding) = &mut self.pushed else { return Ok(Vec::new()) };
        let codec = Arc::clone(encoding.codec());
        let terms = &*self.terms;
        let sender = MessageSender::aside(terms.me());
        let link = FeedbackLink::of(encoding, NAMES, delta, terms.shards.len)?;
        let mut made = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let len = piece.range.len();
            let sum = terms.values.take_len(len)?;
            let value = Part::of(delta, piece.within(range));
            link.compensate_into(piece.range.clone(), &value, &Part::of(&sum, 0..len))?;
            let message = terms.push_room(len)?;
            let seed = encoding.draw(&[terms.rank as u64, piece.range.start as u64]);
            let start = value.range.start;
            let bytes = sender.encode(&*codec, start, Part::of(&sum, 0..len), Part::whole(&message), seed)?;
            made.push((sum, ElementsPayload { buffer: message, len: bytes }));
        }
        for (piece, (sum, message)) in pieces.iter().zip(&made) {
            let sum = Part::of(sum, 0..piece.range.len());
            link.remember(piece.range.clone(), &sum, |weight, to| {
                sender.decode(&*codec, Part::of(&message.buffer, 0..message.len), Some(weight), to)
            })?;
        }
        encoding.state_mut().advance();
        Ok(made.into_iter().map(|(_, message)| message).collect())
    }

    /// Stores the parameters of `range` in `into`, after waiting for the clock: see
    /// [`Clock::wait`](super::super::Clock::wait).
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if the lengths differ; as [`Clock::wait`](super::super::Clock::wait);
    /// the error of an earlier request.
    pub fn pull<'a>(&'a mut self, range: Range<usize>, into: &'a mut Buffer) -> Primitive<'a, Pulled> {
        Box::pin(async move {
            self.terms.check(&range, into)?;
            free_to_write(into)?;
            self.clock.wait().await?;
            let pieces = self.terms.pieces(&range);
            let places: Vec<_> = pieces.iter().map(|piece| piece.within(&range)).collect();
            self.fetch(&pieces, into, &places).await
        })
    }

    /// Pulls like [`Server::pull`], but reuses an earlier result of this call, without a message, while it contains
    /// all pushes of clocks before c − s. Recent pushes of this rank may be missing. Takes S bytes of memory.
    ///
    /// # Errors
    /// As [`Server::pull`].
    pub fn pull_cached<'a>(&'a mut self, range: Range<usize>, into: &'a mut Buffer) -> Primitive<'a, Pulled> {
        Box::pin(async move {
            self.terms.check(&range, into)?;
            free_to_write(into)?;
            let mut cache = match self.cache.take() {
                Some(cache) => cache,
                None => Cache::new(into, self.terms.shards.len, self.terms.peers.len())?,
            };
            let pieces = self.terms.pieces(&range);
            let refreshed = self.refresh(&mut cache, &pieces).await;
            let pulled = refreshed.and_then(|()| cache.read(&pieces, &range, into));
            self.cache = Some(cache);
            pulled
        })
    }

    /// Pulls those shards of `pieces` that are too old.
    async fn refresh(&self, cache: &mut Cache, pieces: &[ShardRange]) -> Result<()> {
        let needed = self.clock.now().saturating_sub(self.clock.staleness());
        let stale = pieces.iter().filter(|piece| !cache.holds(piece.rank, needed));
        let stale: Vec<ShardRange> =
            stale.map(|piece| ShardRange::of_shard(&self.terms, piece.rank)).collect();
        if stale.is_empty() {
            return Ok(());
        }
        self.clock.wait().await?;
        let places: Vec<_> = stale.iter().map(|piece| piece.range.clone()).collect();
        let Pulled { clock, versions } = self.fetch(&stale, &cache.parameters, &places).await?;
        stale.iter().zip(versions).for_each(|(piece, version)| cache.note(piece.rank, clock, version));
        Ok(())
    }

    /// Fetches pieces, all at the same time, into their places.
    async fn fetch(&self, pieces: &[ShardRange], into: &Buffer, places: &[Range<usize>]) -> Result<Pulled> {
        let clock = self.clock.slowest();
        let ask = |piece: &ShardRange| {
            let room = self.terms.pull_room(piece.range.len())?;
            Ok(self.ask(piece, None, Some((clock, room))))
        };
        let asked = pieces.iter().map(ask).collect::<Result<Vec<_>>>()?;
        let mut versions = Vec::with_capacity(pieces.len());
        for ((piece, place), answer) in pieces.iter().zip(places).zip(asked) {
            let answer = answer.await?;
            versions.push(answer.arguments[0]);
            self.land(piece, answer, Part::of(into, place.clone()))?;
        }
        Ok(Pulled { clock, versions })
    }

    fn land(&self, piece: &ShardRange, answer: Response, to: Part<'_>) -> Result<()> {
        let Some(ReceivedPayload { buffer, bytes }) = answer.payload else { return Ok(()) };
        let from = &self.terms.peers[piece.rank];
        let len = piece.range.len();
        if let Some(encoding) = &self.terms.pulled {
            let message = Part::of(&buffer, 0..bytes);
            return MessageSender::aside(from).decode(&**encoding.codec(), message, None, to);
        }
        if bytes != len * size_of::<f32>() {
            return Err(violation(from, "parameters that were not requested"));
        }
        to.write()?.copy_from(&buffer.read(0..len)?)
    }

    /// Sends one request: a push with a payload, or a pull with a settled clock and room for the answer. Until the
    /// answer, other ranks see no later clock of this rank.
    fn ask(
        &self,
        piece: &ShardRange,
        payload: Option<ElementsPayload>,
        pull: Option<(u64, Arc<Buffer>)>,
    ) -> Pending<Response> {
        let hold = self.clock.hold();
        let (verb, clock, into) = match pull {
            Some((settled, into)) => (PULL, settled, Some(into)),
            None => (PUSH, hold.clock, None),
        };
        let arguments = [piece.start as u64, piece.range.len() as u64, clock];
        let to = piece.rank;
        let handler = self.number;
        let fingerprint = self.terms.fingerprint;
        let ask = OutgoingRequest { handler, verb, fingerprint, arguments, payload, into };
        self.service.submit(move |dispatcher| async move {
            let answer = dispatcher.request(to, ask).await;
            drop(hold);
            answer
        })
    }
}
