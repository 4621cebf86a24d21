//! Requests of other ranks, and the replies to them: the serving half of the protocol in [`super::dispatcher`].

use super::dispatcher::{Dispatcher, IncomingRequest, PAYLOADS, REPLIES, bytes_of, label, request_label};
use super::handler::{ElementsPayload, Handler, ReceivedPayload, Reply, Served};
use super::wire::{Head, LEAVE, Request};
use crate::{Buffer, DType, Error, ReceiveMode, Result};
use hexagram_physical::stopwatch::Stopwatch;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

impl Dispatcher {
    /// Receives a request. Returns a future that serves it, unless a running task will serve it.
    pub(crate) fn receive(
        self: &Rc<Self>,
        from: usize,
        message: &[u8],
    ) -> Result<Option<impl Future<Output = ()> + use<>>> {
        self.last_heard.set(Stopwatch::start());
        let (request, payload) =
            Request::parse(message).ok_or_else(|| self.violation(from, "a malformed request"))?;
        if request.handler == LEAVE {
            self.left.borrow_mut()[from] = true;
            return Ok(None);
        }
        let key = (from, request.handler);
        let incoming = IncomingRequest { request, payload: payload.to_vec() };
        let mut queues = self.queues.borrow_mut();
        if let Some(queue) = queues.get_mut(&key) {
            queue.push_back(incoming);
            return Ok(None);
        }
        queues.insert(key, VecDeque::from([incoming]));
        Ok(Some(Rc::clone(self).serve(key)))
    }

    /// Serves the requests of one rank to one handler, until none are left.
    async fn serve(self: Rc<Self>, key: (usize, u32)) {
        loop {
            let next = self.queues.borrow_mut().get_mut(&key).and_then(VecDeque::pop_front);
            let Some(incoming) = next else { break };
            if let Err(error) = self.guarded(self.reply(key.0, incoming)).await {
                self.fail(error);
            }
        }
        self.queues.borrow_mut().remove(&key);
    }

    async fn reply(&self, from: usize, IncomingRequest { request, payload }: IncomingRequest) -> Result<()> {
        let handler = self.handler(from, &request)?;
        let Reply { arguments, payload } = self.carry_out(&*handler, from, &request, &payload).await?;
        let bytes = payload.as_ref().map_or(0, ElementsPayload::bytes);
        if bytes as u64 > request.room {
            let what = format!("a reply of {bytes} bytes exceeds the buffer of rank {from}");
            return Err(Error::usage(what, "create the same primitive, with the same size, on all ranks"));
        }
        let mut head = Head { arguments, bytes: bytes as u64 }.to_bytes();
        if request.reply_rides() {
            head.extend(ElementsPayload::copied(payload.as_ref())?);
        }
        let call = self.call(REPLIES, &request)?;
        let head = Buffer::from_slice(&head)?;
        let sent = call.send(from, 0, &head, 0..head.len())?;
        if !request.reply_rides() {
            let payload = match payload {
                Some(payload) => payload,
                None => ElementsPayload::whole(Arc::new(Buffer::zeroed(DType::U8, 0)?)),
            };
            call.send(from, 1, &payload.buffer, 0..payload.len)?.await?;
        }
        sent.await.map(drop)
    }

    /// Receives a payload, and passes the request to the handler. `along` is the payload if it was inline.
    pub(crate) async fn carry_out(
        &self,
        handler: &dyn Handler,
        from: usize,
        request: &Request,
        along: &[u8],
    ) -> Result<Reply> {
        let member = self.member(from);
        let landed =
            ReceivedPayload { buffer: handler.admit(&member, request)?, bytes: request.bytes as usize };
        if request.bytes > bytes_of(&landed.buffer) as u64 {
            return Err(self.violation(from, "a payload that does not fit"));
        }
        if along.len() as u64 == request.bytes {
            self.store(from, along, &landed.buffer)?;
        } else {
            let call = self.call(PAYLOADS, request)?;
            let buffer = &landed.buffer;
            let got = call.recv(from, 0, buffer, 0..buffer.len(), ReceiveMode::AtMost)?.await?;
            if got.bytes as u64 != request.bytes {
                return Err(self.violation(from, "a payload whose size differs from the request"));
            }
        }
        let label = label(REPLIES, request)?;
        let mut postponed = None;
        let reply = self.until(&label, || match handler.serve(&member, request, &landed)? {
            Served::Done(reply) => Ok(Some(reply)),
            Served::Later => {
                postponed.get_or_insert_with(|| self.postpone());
                Ok(None)
            }
        });
        reply.await
    }

    /// Announces to another rank that no more requests follow.
    pub(super) async fn send_leave(&self, to: usize) -> Result<()> {
        let fingerprint = request_label()?.fingerprint;
        let arguments = [0; 3];
        let leave = Request {
            handler: LEAVE,
            verb: 0,
            slot: 0,
            number: 0,
            fingerprint,
            bytes: 0,
            room: 0,
            arguments,
        };
        let message = Buffer::from_slice(&leave.to_bytes(&[]))?;
        let sent = self.comm.begin(request_label()?)?.send(to, 0, &message, 0..message.len())?;
        sent.await.map(drop)
    }
}
