//! Two hosts on one machine: network namespaces joined by a link that can be cut. Needs root and the `ip` program.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Removed with its content at the end of the test.
pub(crate) struct Hosts {
    prefix: String,
    count: usize,
    secret: PathBuf,
    /// Copies for other users.
    theirs: Vec<PathBuf>,
}

fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Numbers the interfaces of a host from a different start: names are equal on all hosts, numbers are not.
fn number_interfaces_from(host: &str, number: usize) -> bool {
    (0..number).all(|other| ip(&format!("-n {host} link add other{other} type bridge")))
}

impl Hosts {
    /// Hosts at 10.99.0.1 and up, each on a switch in a separate namespace; `None` if this process may not create
    /// them.
    pub(crate) fn start(count: usize) -> Option<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("hxg{}n{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let secret = env::temp_dir().join(format!("{prefix}-secret"));
        let hosts = Hosts { prefix, count, secret, theirs: Vec::new() };
        let prefix = &hosts.prefix;
        let mut made = ip(&format!("netns add {prefix}sw"))
            && ip(&format!("-n {prefix}sw link add br0 type bridge"))
            && ip(&format!("-n {prefix}sw link set br0 up"));
        for host in 0..count {
            made = made
                && ip(&format!("netns add {prefix}h{host}"))
                && number_interfaces_from(&format!("{prefix}h{host}"), host)
                && ip(&format!(
                    "link add eth0 netns {prefix}h{host} type veth peer name p{host} netns {prefix}sw"
                ))
                && ip(&format!("-n {prefix}h{host} addr add 10.99.0.{}/24 dev eth0", host + 1))
                && ip(&format!("-n {prefix}h{host} link set lo up"))
                && ip(&format!("-n {prefix}h{host} link set eth0 up"))
                && ip(&format!("-n {prefix}sw link set p{host} master br0"))
                && ip(&format!("-n {prefix}sw link set p{host} up"));
        }
        if hosts.have_ipv6() {
            for host in 0..count {
                let inside = format!("-n {prefix}h{host}");
                for address in ["fd99::", "fe80::99:"] {
                    ip(&format!("{inside} addr add {address}{}/64 dev eth0 nodad", host + 1));
                }
            }
        }
        fs::write(&hosts.secret, format!("the secret of {prefix}")).unwrap();
        fs::set_permissions(&hosts.secret, fs::Permissions::from_mode(0o600)).unwrap();
        made.then_some(hosts)
    }

    /// The commands of `size` ranks that meet at `port`, spread over the hosts in blocks.
    pub(crate) fn ranks(&self, size: usize, port: u16) -> impl Iterator<Item = Command> {
        let per_host = size / self.count;
        (0..size).map(move |rank| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &format!("{}h{}", self.prefix, rank / per_host)]);
            command.arg(env::current_exe().unwrap());
            command
                .env("HEXAGRAM_ADDR", format!("10.99.0.1:{port}"))
                .env("HEXAGRAM_SECRET_FILE", &self.secret);
            command.env("HEXAGRAM_RANK", rank.to_string()).env("HEXAGRAM_SIZE", size.to_string());
            command.env("HEXAGRAM_LOCAL_RANK", (rank % per_host).to_string());
            command.env("HEXAGRAM_LOCAL_SIZE", per_host.to_string());
            command
        })
    }

    /// Whether the hosts have addresses of IPv6, too: fd99::1 and up, and fe80::99:1 and up on their links.
    pub(crate) fn have_ipv6(&self) -> bool {
        fs::exists("/proc/sys/net/ipv6").unwrap_or_default()
    }

    /// Processes started on `host` from now on resolve `name` to these addresses.
    pub(crate) fn resolve(&self, host: usize, name: &str, addresses: &[&str]) {
        let folder = self.names(host);
        fs::create_dir_all(&folder).unwrap();
        let lines: Vec<String> = addresses.iter().map(|address| format!("{address} {name}\n")).collect();
        fs::write(folder.join("hosts"), format!("127.0.0.1 localhost\n{}", lines.concat())).unwrap();
    }

    /// Replacements of the files in /etc for `ip netns exec`.
    fn names(&self, host: usize) -> PathBuf {
        PathBuf::from(format!("/etc/netns/{}h{host}", self.prefix))
    }

    /// A copy of the secret for another user; `None` if that user cannot access it.
    pub(crate) fn secret_of(&mut self, user: u32) -> Option<PathBuf> {
        let open =
            |folder: &Path| fs::metadata(folder).is_ok_and(|about| about.permissions().mode() & 1 != 0);
        let theirs = self.secret.with_extension(user.to_string());
        if !self.secret.ancestors().skip(1).all(open) {
            return None;
        }
        fs::copy(&self.secret, &theirs).unwrap();
        chown(&theirs, Some(user), Some(user)).unwrap();
        self.theirs.push(theirs.clone());
        Some(theirs)
    }

    /// Cuts the last host off: packets vanish, nothing is reset. When that was.
    pub(crate) fn cut(&self) -> Instant {
        let at = Instant::now();
        assert!(ip(&format!("-n {}sw link set p{} nomaster", self.prefix, self.count - 1)));
        at
    }

    /// Cuts one direction: nothing reaches `host` any more, while its own packets arrive. Returns the time; `None` if
    /// the switch cannot do that.
    pub(crate) fn deafen(&self, host: usize) -> Option<Instant> {
        let at = Instant::now();
        // The switch forgets where the host is, does not learn it again, and does not look for it everywhere.
        let port = format!("-n {}sw link set p{host} type bridge_slave", self.prefix);
        ip(&format!("{port} learning off flood off fdb_flush")).then_some(at)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..self.count {
            ip(&format!("netns del {}h{host}", self.prefix));
            let _ = fs::remove_dir_all(self.names(host));
        }
        ip(&format!("netns del {}sw", self.prefix));
        let _ = fs::remove_file(&self.secret);
        self.theirs.iter().for_each(|theirs| drop(fs::remove_file(theirs)));
    }
}
