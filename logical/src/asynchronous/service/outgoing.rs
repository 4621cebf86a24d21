//! Requests of this rank, and their replies: the requesting half of the protocol in [`super::dispatcher`].

use super::dispatcher::{
    Dispatcher, OutgoingRequest, PAYLOADS, REPLIES, Response, bytes_of, label, request_label,
};
use super::handler::{ElementsPayload, ReceivedPayload, Reply};
use super::wire::{Head, REPLY_BYTES, Request};
use crate::{Buffer, DType, ReceiveMode, Result};
use hexagram_physical::stopwatch::Stopwatch;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

impl Dispatcher {
    /// Sends a request to a rank, which may be this one, and returns the reply.
    ///
    /// # Errors
    /// The errors of every operation; the other ranks are notified.
    pub(crate) async fn request(&self, to: usize, ask: OutgoingRequest) -> Result<Response> {
        let outcome =
            if to == self.rank() { self.request_locally(ask).await } else { self.converse(to, ask).await };
        outcome.map_err(|error| self.fail(error))
    }

    /// Sends several requests at the same time. Returns the replies, in the order of `asks`.
    ///
    /// # Errors
    /// As [`Dispatcher::ask`].
    pub(crate) async fn request_all(&self, asks: Vec<(usize, OutgoingRequest)>) -> Result<Vec<Response>> {
        let mut answers: Vec<Option<Response>> = asks.iter().map(|_| None).collect();
        let ask = |(at, (to, ask))| Box::pin(async move { (at, self.request(to, ask).await) });
        let mut running: Vec<_> = asks.into_iter().enumerate().map(ask).collect();
        poll_fn(|context| {
            let mut failed = None;
            running.retain_mut(|ask| match ask.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready((at, answer)) => {
                    answer.map_or_else(|error| failed = Some(error), |answer| answers[at] = Some(answer));
                    false
                }
            });
            match failed {
                Some(error) => Poll::Ready(Err(error)),
                None if running.is_empty() => Poll::Ready(Ok(())),
                None => Poll::Pending,
            }
        })
        .await?;
        Ok(answers.into_iter().flatten().collect())
    }

    async fn converse(&self, to: usize, ask: OutgoingRequest) -> Result<Response> {
        let mut request = describe(&ask);
        (request.slot, request.number) = self.turn(to, &request).await?;
        let out = self.call(PAYLOADS, &request)?;
        let back = self.call(REPLIES, &request)?;
        // Posts everything before the first wait.
        let rides = if request.reply_rides() { request.room as usize } else { 0 };
        let head = Buffer::zeroed(DType::U8, REPLY_BYTES + rides)?;
        let reply = back.recv(to, 0, &head, 0..head.len(), ReceiveMode::AtMost)?;
        let result = match &ask.into {
            Some(into) if !request.reply_rides() => {
                Some(back.recv(to, 1, into, 0..into.len(), ReceiveMode::AtMost)?)
            }
            _ => None,
        };
        let along = if request.rides() { ElementsPayload::copied(ask.payload.as_ref())? } else { Vec::new() };
        let message = Buffer::from_slice(&request.to_bytes(&along))?;
        let first = self.comm.begin(request_label()?)?.send(to, 0, &message, 0..message.len())?;
        if let Some(payload) = ask.payload.filter(|_| !request.rides()) {
            out.send(to, 0, &payload.buffer, 0..payload.len)?.await?;
        }
        first.await?;
        let got = reply.await?.checked(self.comm.endpoint(), head.len())?;
        let result = match result {
            Some(result) => Some(result.await?.bytes),
            None => None,
        };
        self.lines.borrow_mut()[to].free.push(request.slot);
        self.last_heard.set(Stopwatch::start());
        let head = head.host::<u8>()?;
        let (head, along) =
            Head::parse(&head[..got.bytes]).ok_or_else(|| self.violation(to, "a malformed reply"))?;
        self.answer(to, head, along, result, ask.into)
    }

    /// Assembles a reply from its parts.
    fn answer(
        &self,
        from: usize,
        head: Head,
        along: &[u8],
        result: Option<usize>,
        into: Option<Arc<Buffer>>,
    ) -> Result<Response> {
        let landed = result.unwrap_or(along.len());
        if head.bytes != landed as u64 {
            return Err(self.violation(from, "a reply whose size differs from its header"));
        }
        let payload = match into {
            Some(buffer) => {
                if result.is_none() {
                    self.store(from, along, &buffer)?;
                }
                Some(ReceivedPayload { buffer, bytes: landed })
            }
            None => None,
        };
        Ok(Response { arguments: head.arguments, payload })
    }

    /// Returns the slot and the number of the next request to `to`, once a slot is free.
    async fn turn(&self, to: usize, request: &Request) -> Result<(u16, u64)> {
        let number = {
            let line = &mut self.lines.borrow_mut()[to];
            line.made += 1;
            line.made - 1
        };
        let label = label(REPLIES, &Request { number, ..*request })?;
        let slot = self.until(&label, || {
            let line = &mut self.lines.borrow_mut()[to];
            if line.started != number {
                return Ok(None);
            }
            let slot = line.free.pop();
            line.started += u64::from(slot.is_some());
            Ok(slot)
        });
        Ok((slot.await?, number))
    }

    async fn request_locally(&self, ask: OutgoingRequest) -> Result<Response> {
        let request = describe(&ask);
        let rank = self.rank();
        let handler = self.handler(rank, &request)?;
        let bytes = ElementsPayload::copied(ask.payload.as_ref())?;
        let Reply { arguments, payload } = self.carry_out(&*handler, rank, &request, &bytes).await?;
        let bytes = ElementsPayload::copied(payload.as_ref())?;
        let head = Head { arguments, bytes: bytes.len() as u64 };
        self.answer(rank, head, &bytes, None, ask.into)
    }
}

/// Returns a request without its slot and number.
fn describe(ask: &OutgoingRequest) -> Request {
    Request {
        handler: ask.handler,
        verb: ask.verb,
        slot: 0,
        number: 0,
        fingerprint: ask.fingerprint,
        bytes: ask.payload.as_ref().map_or(0, ElementsPayload::bytes) as u64,
        room: ask.into.as_deref().map_or(0, bytes_of) as u64,
        arguments: ask.arguments,
    }
}
