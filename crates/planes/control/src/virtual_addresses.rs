//! Virtual addresses of ServiceEntries that name none, so that a captured connection tells which service it is for.
//!
//! An address follows from the service's name: the same folder gives the same addresses on every machine and every start.
//! Names whose hashes meet are told apart by further draws, and who came first keeps its address: that much is
//! remembered in the state directory, since clients hold addresses longer than an edit takes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use voile_model::check::Turn;
use voile_model::mesh::{MeshService, Resolution, ServiceOrigin};
use voile_model::{Mesh, ServiceKey};

use crate::state_file::StateFile;

/// Name in the state directory.
const FILE: &str = "virtual-addresses.json";
/// Istio's range for allocated addresses, class E: nobody routes it. 240.240.0.0/16.
const RANGE_V4: [u8; 2] = [240, 240];
/// The same for IPv6: 2001:2::/48, of the benchmarking range (RFC 5180).
const RANGE_V6: [u16; 3] = [0x2001, 2, 0];
/// Draws for one name before it goes without an IPv4 address: at 90 % full, one name in 10^11 would need more.
const MAX_DRAWS: u32 = 256;
/// Names remembered, those of services that are gone included: half the range, so that draws stay few.
const MAX_REMEMBERED: usize = 32_768;

/// See the module.
#[derive(Debug)]
pub(crate) struct VirtualAddresses {
    file: StateFile,
    /// Address by `namespace/hostname`.
    given: BTreeMap<String, Ipv4Addr>,
}

impl VirtualAddresses {
    /// Loads the addresses that an earlier run gave. Returns none if the file cannot be read, and logs that.
    pub(crate) fn load(state: &Path) -> Self {
        let file = StateFile::new(state, FILE);
        let given = match file.read() {
            Ok(Some(text)) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
            Ok(None) => Ok(BTreeMap::new()),
            Err(error) => Err(error.to_string()),
        };
        let given = given.unwrap_or_else(|error| {
            tracing::warn!(path = %file.path().display(), error, "cannot read the assigned virtual addresses; names that share a hash may get other addresses");
            BTreeMap::new()
        });
        Self { file, given }
    }

    /// Every service that needs an address, with one.
    pub(crate) fn give(&mut self, mesh: &Mesh) -> AssignedAddresses {
        let needing: Vec<Arc<MeshService>> = mesh
            .services
            .values()
            .filter(|service| needs(service))
            .cloned()
            .collect();
        let mut given = AssignedAddresses::default();
        if needing.is_empty() {
            return given;
        }
        let before = self.given.len();
        let fixed: HashSet<Ipv4Addr> = mesh
            .services
            .values()
            .flat_map(|service| &service.addresses)
            .filter_map(|address| match address {
                IpAddr::V4(v4) => Some(*v4),
                IpAddr::V6(_) => None,
            })
            .collect();
        // An address in a resource belongs to that resource's service.
        self.given.retain(|_, address| !fixed.contains(address));
        self.forget(&needing);
        let names: Vec<String> = needing.iter().map(|one| one.key.to_string()).collect();
        let is_new = |name: &String| !self.given.contains_key(name);
        if self.given.len() != before || names.iter().any(is_new) {
            self.draw(&names, &fixed);
        }
        for (name, service) in names.into_iter().zip(needing) {
            let v4 = self.given.get(&name).copied();
            if v4.is_none() {
                tracing::error!(
                    service = name,
                    "no virtual IPv4 address is left for the service"
                );
            }
            let mut service = MeshService::clone(&service);
            service.addresses = v4.map(IpAddr::V4).into_iter().collect();
            service.addresses.push(IpAddr::V6(v6(&name)));
            given.0.insert(service.key.clone(), Arc::new(service));
        }
        given
    }

    /// Gives each of these names an address that has none, and remembers it. Another control plane on the same directory may have
    /// come first: what it gave is taken over, and it waits for us meanwhile.
    fn draw(&mut self, names: &[String], fixed: &HashSet<Ipv4Addr>) {
        let given = &mut self.given;
        let kept = self.file.update(|there| {
            let there: BTreeMap<String, Ipv4Addr> = there
                .and_then(|text| serde_json::from_slice(&text).ok())
                .unwrap_or_default();
            let mut taken: HashSet<Ipv4Addr> = given.values().copied().collect();
            for (name, address) in there {
                let is_free = !fixed.contains(&address) && !taken.contains(&address);
                if is_free && given.len() < MAX_REMEMBERED && !given.contains_key(&name) {
                    taken.insert(address);
                    given.insert(name, address);
                }
            }
            give(given, names, |address| {
                !fixed.contains(&address) && taken.insert(address)
            });
            // Names and addresses: there is nothing in them that could not be written.
            serde_json::to_vec(given).unwrap_or_default()
        });
        if let Err(error) = kept {
            tracing::warn!(path = %self.file.path().display(), %error, "cannot save virtual addresses");
            // Not even the lock could be had, perhaps: they are given all the same.
            let mut taken: HashSet<Ipv4Addr> = given.values().copied().collect();
            give(given, names, |address| {
                !fixed.contains(&address) && taken.insert(address)
            });
        }
    }

    /// Lets the names of services that are gone go once there are too many.
    fn forget(&mut self, needing: &[Arc<MeshService>]) {
        if self.given.len() <= MAX_REMEMBERED {
            return;
        }
        let alive: BTreeSet<String> = needing.iter().map(|s| s.key.to_string()).collect();
        self.given.retain(|name, _| alive.contains(name));
    }
}

/// Gives each name that has none the first of its draws that can be taken.
fn give(
    given: &mut BTreeMap<String, Ipv4Addr>,
    names: &[String],
    mut take: impl FnMut(Ipv4Addr) -> bool,
) {
    for name in names {
        if given.contains_key(name) {
            continue;
        }
        let drawn = (0..MAX_DRAWS)
            .map(|draw| v4(name, draw))
            .find(|v4| take(*v4));
        given.extend(drawn.map(|drawn| (name.clone(), drawn)));
    }
}

/// Services as they are with the addresses that they were given.
#[derive(Debug, Default)]
pub(crate) struct AssignedAddresses(BTreeMap<ServiceKey, Arc<MeshService>>);

impl AssignedAddresses {
    /// The services with their addresses.
    pub(crate) fn services(&self) -> Vec<Arc<MeshService>> {
        self.0.values().cloned().collect()
    }

    /// The mesh with them; none when it is the same without.
    pub(crate) fn applied(&self, mesh: &Mesh) -> Option<Mesh> {
        if self.0.is_empty() {
            return None;
        }
        let mut mesh = mesh.clone();
        for (key, service) in &self.0 {
            mesh.services.insert(key.clone(), service.clone());
        }
        Some(mesh)
    }

    /// Makes what is known to have changed in a mesh what has changed with addresses given: these before, and `now`.
    pub(crate) fn correct(
        &self,
        now: &Self,
        changed: &mut BTreeMap<ServiceKey, Turn<MeshService>>,
    ) {
        for (key, (old, new)) in &mut *changed {
            for (service, given) in [(old, self), (new, now)] {
                if let (Some(service), Some(with)) = (service, given.0.get(key)) {
                    *service = with.clone();
                }
            }
        }
        // Somebody wrote down an address that had been given to another.
        for (key, new) in &now.0 {
            let old = self.0.get(key);
            if !changed.contains_key(key) && old != Some(new) {
                changed.insert(key.clone(), (old.cloned(), Some(new.clone())));
            }
        }
    }
}

/// ServiceEntries that name no address, and whose clients are not to reach the address they asked DNS for.
fn needs(service: &MeshService) -> bool {
    service.origin == ServiceOrigin::ServiceEntry
        && service.addresses.is_empty()
        && service.address_ranges.is_empty()
        && match service.resolution {
            Resolution::Static | Resolution::Dns | Resolution::DnsRoundRobin => true,
            // A wildcard that is asked of DNS host by host: one address for all could not tell which.
            Resolution::Passthrough | Resolution::DynamicDns | Resolution::Alias(_) => false,
        }
}

fn digest(name: &str, draw: u32) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(name);
    hash.update(draw.to_be_bytes());
    hash.finalize().into()
}

/// Never the first or last address of a /24, which some take for a network or a broadcast.
fn v4(name: &str, draw: u32) -> Ipv4Addr {
    let digest = digest(name, draw);
    let last = digest[1] % 254 + 1;
    Ipv4Addr::new(RANGE_V4[0], RANGE_V4[1], digest[0], last)
}

/// 80 bits of the hash: names do not meet there.
fn v6(name: &str) -> Ipv6Addr {
    let digest = digest(name, 0);
    let group = |index: usize| u16::from_be_bytes([digest[index], digest[index + 1]]);
    Ipv6Addr::new(
        RANGE_V6[0],
        RANGE_V6[1],
        RANGE_V6[2],
        group(0),
        group(2),
        group(4),
        group(6),
        group(8),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(hosts: impl IntoIterator<Item = String>, extra: &str) -> Mesh {
        let mut text = extra.to_owned();
        for (index, host) in hosts.into_iter().enumerate() {
            text += &format!(
                "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: e{index}, namespace: shop}}\n\
                 spec: {{hosts: [\"{host}\"], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: DNS}}\n"
            );
        }
        let (mesh, problems) =
            voile_model::check(&[voile_model::SourceFile::new("mesh.yaml", text)], None);
        assert!(
            !problems.iter().any(voile_model::Diagnostic::is_error),
            "{problems:?}"
        );
        mesh
    }

    fn host(number: usize) -> String {
        format!("h{number}.example.com")
    }

    /// All services of a mesh with their addresses.
    fn all(addresses: &mut VirtualAddresses, mesh: &Mesh) -> BTreeMap<String, Vec<IpAddr>> {
        let entry =
            |service: &Arc<MeshService>| (service.key.to_string(), service.addresses.clone());
        let mesh = addresses.give(mesh).applied(mesh).expect("some need one");
        mesh.services.values().map(entry).collect()
    }

    #[test]
    fn every_name_has_an_address_of_its_own_and_keeps_it_over_edits_and_restarts() {
        let state = tempfile::tempdir().unwrap();
        let mut addresses = VirtualAddresses::load(state.path());
        let first = all(&mut addresses, &mesh((0..1500).map(host), ""));
        let v4: BTreeSet<&IpAddr> = first.values().map(|all| &all[0]).collect();
        assert_eq!(v4.len(), 1500, "no two share one");
        let met = first
            .iter()
            .filter(|(name, all)| all[0] != IpAddr::V4(super::v4(name, 0)))
            .count();
        assert!(met > 0, "so many names that some hashes meet");
        let mut later = VirtualAddresses::load(state.path());
        let edited = all(&mut later, &mesh((0..3000).rev().map(host), ""));
        for (name, address) in &first {
            assert_eq!(edited.get(name), Some(address), "{name}");
        }
        // A service that was away gets its address back.
        later.give(&mesh((1500..3000).map(host), ""));
        assert_eq!(all(&mut later, &mesh((0..1500).map(host), "")), first);
    }

    #[test]
    fn two_control_planes_on_one_directory_give_the_same_whoever_hears_first_of_what() {
        let state = tempfile::tempdir().unwrap();
        let two = || VirtualAddresses::load(state.path());
        let (mut ours, mut theirs) = (two(), two());
        // Each reads other names first, so that each would be the first to draw what others' hashes meet.
        let early = |number: usize| host(3000 - number);
        all(&mut ours, &mesh((1500..3000).map(early), ""));
        all(&mut theirs, &mesh((0..1500).map(early), ""));
        let whole = mesh((0..3000).map(early), "");
        assert_eq!(all(&mut ours, &whole), all(&mut theirs, &whole));
    }

    #[test]
    fn without_a_memory_the_addresses_are_the_same_but_for_names_that_meet() {
        let one = tempfile::tempdir().unwrap();
        let two = tempfile::tempdir().unwrap();
        let made = |at: &Path| {
            all(
                &mut VirtualAddresses::load(at),
                &mesh((0..300).map(host), ""),
            )
        };
        assert_eq!(made(one.path()), made(two.path()));
    }

    #[test]
    fn an_address_that_a_resource_names_is_given_to_nobody_else() {
        let state = tempfile::tempdir().unwrap();
        let mut addresses = VirtualAddresses::load(state.path());
        let first = all(&mut addresses, &mesh([host(0)], ""));
        let (name, given) = first.first_key_value().unwrap();
        let rival = format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: rival, namespace: shop}}\n\
             spec: {{hosts: [rival.example.com], addresses: [{}], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: DNS}}\n",
            given[0]
        );
        let now = all(&mut addresses, &mesh([host(0)], &rival));
        assert_eq!(now["shop/rival.example.com"], [given[0]]);
        assert_ne!(now[name], *given);
        assert_eq!(now[name][1], given[1], "IPv6 stays");
    }

    #[test]
    fn only_entries_that_need_one_get_one() {
        let entry = |name: &str, spec: &str| {
            format!(
                "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n\
                 spec: {{ports: [{{number: 80, name: http, protocol: HTTP}}], {spec}}}\n"
            )
        };
        let text = [
            entry("none", "hosts: [none.example.com], resolution: NONE"),
            entry("range", "hosts: [range.example.com], addresses: [10.9.0.0/16], resolution: NONE"),
            entry("written", "hosts: [written.example.com], addresses: [10.8.0.1], resolution: DNS"),
            entry("wild", "hosts: [\"*.wild.example.com\"], resolution: STATIC, endpoints: [{address: 10.7.0.1}]"),
            entry("dynamic", "hosts: [\"*.dynamic.example.com\"], resolution: DYNAMIC_DNS"),
            "---\napiVersion: v1\nkind: Service\nmetadata: {name: plain, namespace: shop}\nspec: {ports: [{port: 80}]}\n".to_owned(),
        ]
        .concat();
        let state = tempfile::tempdir().unwrap();
        let given = VirtualAddresses::load(state.path()).give(&mesh([], &text));
        let with: Vec<String> = given
            .0
            .values()
            .filter(|service| {
                service
                    .addresses
                    .iter()
                    .any(|a| a.to_string().starts_with("240.240."))
            })
            .map(|service| service.name.to_string())
            .collect();
        assert_eq!(with, ["wild"]);
    }
}
