//! The announcement of rank 0: its address and the secret of the job, for ranks that meet through another channel,
//! such as MPI or a [`Store`](crate::bootstrap::Store). Rank 0 then listens at a free address, so that users need not choose
//! one.
//!
//! ```text
//! announcement = MEET:u32 host:text port:u32 secret:32     port 0 means a unix socket of that name
//!              | FAILED:u32 reason:text                    rank 0 does not listen
//! ```

use super::rendezvous::{ListenContext, Rendezvous};
use crate::bootstrap::handshake::message::{MessageReader, MessageWriter, malformed};
use crate::bootstrap::handshake::random;
use crate::bootstrap::sockets::listeners::Listeners;
use crate::bootstrap::sockets::reachable;
use crate::bootstrap::sockets::stream::Listener;
use crate::error::{Error, Result};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Kind of an announcement of a rendezvous.
const MEET: usize = 0;
/// Kind of an announcement of a failure.
const FAILED: usize = 1;

/// Facts about the job by which rank 0 chooses its address.
pub(crate) struct Surroundings<'a> {
    /// True if all ranks are on the host of rank 0.
    pub(crate) one_host: bool,
    /// Address that the user requests, with port 0.
    pub(crate) asked: Option<SocketAddr>,
    /// Addresses of the hosts of all ranks.
    pub(crate) peers: &'a [IpAddr],
}

/// Opens the listener of rank 0, at a free address that all ranks can reach. Returns it with the announcement.
///
/// # Errors
/// [`Error::Setup`] if there is no route to the other hosts, [`Error::System`] if the address cannot be used.
pub(crate) fn open(surroundings: &Surroundings<'_>) -> Result<(Listener, Vec<u8>)> {
    let secret = random::<32>().map_err(Error::no_random)?;
    let (listener, host, port) = match surroundings.one_host {
        true => listen_locally()?,
        false => listen_to_hosts(surroundings)?,
    };
    let message = MessageWriter::default().number(MEET).text(&host).number(port.into()).bytes(&secret);
    Ok((listener, message.whole()))
}

/// Returns the announcement that rank 0 does not listen, with the reason.
pub(crate) fn failure(error: &Error) -> Vec<u8> {
    MessageWriter::default().number(FAILED).text(&error.to_string()).whole()
}

/// Decodes the announcement of rank 0: the rendezvous, and the secret of the job.
///
/// # Errors
/// [`Error::Setup`] if rank 0 announces that it failed, [`Error::System`] if the announcement is malformed.
pub(crate) fn read(announcement: &[u8]) -> Result<(Rendezvous, Vec<u8>)> {
    let parse = || -> io::Result<Result<(Rendezvous, Vec<u8>)>> {
        let mut message = MessageReader::receive(&mut &*announcement)?;
        match message.number()? {
            MEET => {}
            FAILED => {
                let what = format!("rank 0 cannot open the rendezvous: {}", message.text()?);
                return Ok(Err(Error::setup(what, "see the error of rank 0")));
            }
            _ => return Err(malformed()),
        }
        let host = message.text()?;
        let port = u16::try_from(message.number()?).map_err(|_| malformed())?;
        let secret = message.bytes::<32>()?;
        let rendezvous =
            if port == 0 { Rendezvous::Local(host) } else { Rendezvous::Tcp { host, port, agent: false } };
        Ok(Ok((rendezvous, secret.to_vec())))
    };
    parse().unwrap_or_else(|cause| {
        Err(Error::system("read the announcement of rank 0", cause, "use the same build on all ranks"))
    })
}

/// Listens at a unix socket with a random name.
fn listen_locally() -> Result<(Listener, String, u16)> {
    let name = random::<16>().map(|bytes| format!("hexagram-{:032x}", u128::from_le_bytes(bytes)));
    let name = name.map_err(Error::no_random)?;
    let context = ListenContext { remote_ranks: 0, alternative: "start it again", patience: Duration::ZERO };
    Ok((Rendezvous::Local(name.clone()).listen(None, context)?, name, 0))
}

/// Listens at the address with a route to the other hosts, unless the user requests a different one.
fn listen_to_hosts(surroundings: &Surroundings<'_>) -> Result<(Listener, String, u16)> {
    let towards = || reachable::towards(surroundings.peers).map(|ip| SocketAddr::new(ip, 0));
    let interface = surroundings.asked.map_or_else(towards, Ok)?;
    let bound = Listeners::bind(&[interface]).map_err(|refused| refused.cause);
    let listen = || -> io::Result<(Listeners, u16)> {
        let listeners = bound?;
        let port = listeners.addresses()?.first().map_or(0, SocketAddr::port);
        Ok((listeners, port))
    };
    let (listeners, port) = listen().map_err(|cause| {
        let remedy = "choose a different interface on the host of rank 0: HEXAGRAM_INTERFACE=eth0";
        Error::system(format!("listen on {}, the rendezvous of all ranks", interface.ip()), cause, remedy)
    })?;
    Ok((Listener::Tcp(listeners, None), interface.ip().to_string(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_read_the_unix_socket_and_the_secret() {
        let surroundings = Surroundings { one_host: true, asked: None, peers: &[] };
        let (listener, announcement) = open(&surroundings).unwrap();
        let (rendezvous, secret) = read(&announcement).unwrap();
        assert!(
            matches!((&listener, &rendezvous), (Listener::Local(_), Rendezvous::Local(_))),
            "{rendezvous}"
        );
        let (_other, another) = open(&surroundings).unwrap();
        assert!(secret.len() == 32 && secret != read(&another).unwrap().1);
    }

    #[test]
    fn ranks_of_several_hosts_read_the_address_that_the_user_asks_for() {
        let asked = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let (listener, announcement) = open(&Surroundings { one_host: false, asked, peers: &[] }).unwrap();
        let Listener::Tcp(listeners, None) = listener else { panic!("not tcp") };
        let (rendezvous, _) = read(&announcement).unwrap();
        assert_eq!(rendezvous.to_string(), listeners.addresses().unwrap()[0].to_string());
    }

    #[test]
    fn a_failure_is_read_as_rank_0s() {
        let error = read(&failure(&Error::setup("no certificate", "make one"))).unwrap_err();
        assert!(
            matches!(&error, Error::Setup { .. }) && error.to_string().contains("no certificate"),
            "{error}"
        );
        let unknown = MessageWriter::default().number(7).text("").whole();
        assert!(
            [unknown.as_slice(), b"", &[0; 3]]
                .into_iter()
                .all(|bytes| matches!(read(bytes), Err(Error::System { .. })))
        );
    }
}
