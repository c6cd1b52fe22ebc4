//! A DestinationRule's traffic policy for one port ⇄ `voile.proxy.v1.TrafficPolicy`. The settings that choose the protocol
//! between sidecars (`h2UpgradePolicy`, `useClientProtocol`) are resolved before and travel beside it.

use std::sync::Arc;

use voile_model::mesh::RetrySettings;
use voile_model::mesh::traffic::{
    Algorithm, Authorities, ClientTls, ConnectionPool, Distribute, HashCookie, HashKey,
    LoadBalancer, LocalitySetting, OutlierDetection, PortTraffic, ProxyProtocol, RetryBudget,
    SuccessRate, TcpKeepAlive, TlsOrigin, Warmup,
};
use voile_proto::proxy as wire;

use super::fields::forms::{negated, or_default, required};
use super::fields::{wire_tuple, wire_type};
use super::{WireError, WireType};

wire_type! {
    PortTraffic as wire::TrafficPolicy {
        balancer = load_balancer with or_default,
        outliers = outlier_detection,
        pool = connection_pool with or_default,
        retry_budget,
        tls = (tls, mesh_server_name, tls_origin),
        proxy_protocol,
    }
}

impl WireType<(i32, String, Option<wire::TlsOrigin>)> for Option<ClientTls> {
    fn to_wire(&self) -> (i32, String, Option<wire::TlsOrigin>) {
        use wire::ClientTls as Word;
        let (word, name, origin) = match self {
            None => (Word::Automatic, String::new(), None),
            Some(ClientTls::Disable) => (Word::Plaintext, String::new(), None),
            Some(ClientTls::Mutual(name)) => (Word::MeshMutual, name.to_wire(), None),
            Some(ClientTls::Originate(origin)) => {
                (Word::Originate, String::new(), Some(origin.to_wire()))
            }
        };
        (word.into(), name, origin)
    }

    fn from_wire(
        (word, name, origin): (i32, String, Option<wire::TlsOrigin>),
    ) -> Result<Self, WireError> {
        use wire::ClientTls as Word;
        Ok(match Word::try_from(word) {
            Ok(Word::Automatic) => None,
            Ok(Word::Plaintext) => Some(ClientTls::Disable),
            Ok(Word::MeshMutual) => Some(ClientTls::Mutual(WireType::from_wire(name)?)),
            Ok(Word::Originate) => {
                let origin = required::from_wire(origin);
                Some(ClientTls::Originate(
                    origin.map_err(|error: WireError| error.within("tls_origin"))?,
                ))
            }
            // An unknown mode might have demanded secrecy.
            Err(_) => return Err(super::unknown_value("tls", word)),
        })
    }
}

impl WireType<u32> for Option<ProxyProtocol> {
    fn to_wire(&self) -> u32 {
        match self {
            None => 0,
            Some(ProxyProtocol::V1) => 1,
            Some(ProxyProtocol::V2) => 2,
        }
    }

    fn from_wire(version: u32) -> Result<Self, WireError> {
        match version {
            0 => Ok(None),
            1 => Ok(Some(ProxyProtocol::V1)),
            2 => Ok(Some(ProxyProtocol::V2)),
            other => Err(WireError::new(
                "",
                format!("version {other} does not exist"),
            )),
        }
    }
}

wire_type! {
    TlsOrigin as wire::TlsOrigin {
        mutual,
        credential,
        authorities = (authorities, authorities_file),
        server_name,
        subject_alt_names,
        unverified,
        certificate = (certificate_file, key_file),
        revocations = revocations_file,
        granted: None,
    }
    verify shows_what_it_must
}

/// Never read as "none need be shown".
fn shows_what_it_must(origin: &TlsOrigin) -> Result<(), WireError> {
    match origin.mutual && origin.credential.is_none() && origin.certificate.is_none() {
        true => Err(WireError::new("credential", "missing")),
        false => Ok(()),
    }
}

impl WireType<(Vec<u8>, String)> for Authorities {
    fn to_wire(&self) -> (Vec<u8>, String) {
        match self {
            Self::System => (Vec::new(), String::new()),
            Self::Pem(pem) => (pem.to_vec(), String::new()),
            Self::File(path) => (Vec::new(), path.to_string()),
        }
    }

    fn from_wire((pem, path): (Vec<u8>, String)) -> Result<Self, WireError> {
        match (pem.is_empty(), path.is_empty()) {
            (true, true) => Ok(Self::System),
            (false, true) => Ok(Self::Pem(pem.into())),
            (true, false) => Ok(Self::File(path.into())),
            (false, false) => Err(WireError::new("authorities", "PEM and file are both set")),
        }
    }
}

/// Paths of a certificate and its key.
impl WireType<(String, String)> for Option<(Arc<str>, Arc<str>)> {
    fn to_wire(&self) -> (String, String) {
        let paths = self.as_ref();
        paths.map_or_else(Default::default, |(one, two)| {
            (one.to_wire(), two.to_wire())
        })
    }

    fn from_wire((certificate, key): (String, String)) -> Result<Self, WireError> {
        match (certificate.is_empty(), key.is_empty()) {
            (true, true) => Ok(None),
            (false, false) => Ok(Some((certificate.into(), key.into()))),
            _ => Err(WireError::new(
                "key_file",
                "certificate_file and key_file must be set together",
            )),
        }
    }
}

wire_type! {
    LoadBalancer as wire::LoadBalancer {
        algorithm = (algorithm, size),
        key,
        warmup,
        locality,
    }
}

impl WireType<(i32, u32)> for Algorithm {
    fn to_wire(&self) -> (i32, u32) {
        use wire::LoadBalancerAlgorithm as Word;
        let (word, size) = match *self {
            Self::LeastCost => (Word::LeastCost, 0),
            Self::LeastRequest => (Word::LeastRequest, 0),
            Self::RoundRobin => (Word::RoundRobin, 0),
            Self::Random => (Word::Random, 0),
            Self::RingHash(least) => (Word::RingHash, u32::try_from(least).unwrap_or(u32::MAX)),
            Self::Maglev(size) => (Word::Maglev, size),
        };
        (word.into(), size)
    }

    fn from_wire((word, size): (i32, u32)) -> Result<Self, WireError> {
        use wire::LoadBalancerAlgorithm as Word;
        Ok(match Word::try_from(word) {
            Ok(Word::LeastCost) => Self::LeastCost,
            Ok(Word::LeastRequest) => Self::LeastRequest,
            Ok(Word::RoundRobin) => Self::RoundRobin,
            Ok(Word::Random) => Self::Random,
            Ok(Word::RingHash) => Self::RingHash(size.into()),
            // A table of one place has nothing to skip through.
            Ok(Word::Maglev) if size < 2 => return Err(WireError::new("size", "too small")),
            Ok(Word::Maglev) => Self::Maglev(size),
            Err(_) => return Err(super::unknown_value("algorithm", word)),
        })
    }
}

wire_type! {
    Warmup as wire::Warmup {
        duration = duration_ms,
        minimum_percent,
        aggression_thousandths,
    }
}

wire_type! {
    LocalitySetting as wire::LocalitySetting {
        enabled = disabled with negated,
        distribute,
        failover,
        priority,
        always,
        zone_aware,
    }
}

wire_type! { Distribute as wire::Distribute { from, to, } }
wire_tuple! { (Arc<str>, u32) as wire::LocalityShare { locality, percent } }
wire_tuple! { (Arc<str>, Arc<str>) as wire::Failover { from, to } }

impl WireType<wire::HashKey> for HashKey {
    fn to_wire(&self) -> wire::HashKey {
        use wire::hash_key::From;
        let from = match self {
            Self::Header(name) => From::Header(name.to_string()),
            Self::SourceIp => From::SourceIp(true),
            Self::Query(name) => From::Query(name.to_string()),
            Self::Cookie(cookie) => From::Cookie(cookie.to_wire()),
        };
        wire::HashKey { from: Some(from) }
    }

    fn from_wire(form: wire::HashKey) -> Result<Self, WireError> {
        use wire::hash_key::From;
        match form.from {
            None => Err(WireError::new("", "missing")),
            Some(From::Header(name)) => Ok(Self::Header(name.into())),
            Some(From::Query(name)) => Ok(Self::Query(name.into())),
            Some(From::SourceIp(_)) => Ok(Self::SourceIp),
            Some(From::Cookie(cookie)) => WireType::from_wire(cookie).map(Self::Cookie),
        }
    }
}

wire_type! { HashCookie as wire::HashCookie { name, path, ttl = ttl_ms, attributes, } }

wire_type! {
    OutlierDetection as wire::OutlierDetection {
        consecutive_5xx,
        consecutive_gateway,
        consecutive_local,
        interval = interval_ms,
        base_ejection = base_ejection_ms,
        max_ejection_percent,
        min_health_percent,
        success_rate,
        max_ejection: Self::default().max_ejection,
    }
}

wire_type! {
    SuccessRate as wire::SuccessRate {
        minimum_hosts,
        request_volume,
        stdev_factor,
        enforcing_percent,
    }
}

wire_type! {
    ConnectionPool as wire::ConnectionPool {
        max_connections,
        connect_timeout = connect_timeout_ms,
        tcp_idle = tcp_idle_ms,
        keep_alive,
        max_pending,
        max_requests,
        max_retries,
        requests_per_connection,
        http_idle = http_idle_ms,
        max_streams,
        max_duration = max_duration_ms,
        http2_upgrade: None,
        use_client_protocol: false,
    }
}

wire_type! {
    TcpKeepAlive as wire::TcpKeepAlive { probes, time = time_ms, interval = interval_ms, }
}

wire_type! { RetryBudget as wire::RetryBudget { percent_thousandths, min, } }

wire_type! {
    RetrySettings as wire::RetryPolicy {
        retries,
        on,
        per_try_timeout = per_try_timeout_ms,
        backoff = backoff_ms,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use voile_model::mesh::traffic::{
        Algorithm, Authorities, ClientTls, ConnectionPool, Distribute, HashCookie, HashKey,
        LoadBalancer, LocalitySetting, OutlierDetection, PortTraffic, ProxyProtocol, RetryBudget,
        SuccessRate, TcpKeepAlive, TlsOrigin, Warmup,
    };

    use voile_proto::proxy::TrafficPolicy;

    use super::or_default::{from_wire as decode, to_wire as encode};

    const S: Duration = Duration::from_secs(1);

    fn balanced(algorithm: Algorithm, key: Option<HashKey>) -> PortTraffic {
        PortTraffic {
            balancer: LoadBalancer {
                algorithm,
                key,
                ..LoadBalancer::default()
            },
            ..PortTraffic::default()
        }
    }

    #[test]
    fn what_a_rule_says_arrives_as_it_was_said_and_nothing_takes_no_bytes() {
        let cookie = HashCookie {
            name: "seat".into(),
            path: Some("/".into()),
            ttl: Some(Duration::ZERO),
            attributes: vec!["Secure".into()],
        };
        let bare = HashCookie {
            path: None,
            ttl: None,
            attributes: Vec::new(),
            ..cookie.clone()
        };
        let mut all = balanced(Algorithm::Maglev(251), Some(HashKey::Cookie(cookie)));
        all.balancer.warmup = Some(Warmup {
            duration: 30 * S,
            minimum_percent: 5,
            aggression_thousandths: 500,
        });
        all.balancer.locality = Some(LocalitySetting {
            enabled: false,
            distribute: vec![Distribute {
                from: "eu/*".into(),
                to: vec![("eu".into(), 80), ("us".into(), 20)],
            }],
            failover: vec![("eu".into(), "us".into())],
            priority: vec!["team=a".into()],
            always: true,
            zone_aware: Some(6),
        });
        all.outliers = Some(OutlierDetection {
            consecutive_gateway: 2,
            consecutive_local: Some(1),
            min_health_percent: 3,
            success_rate: Some(SuccessRate {
                minimum_hosts: 2,
                request_volume: 3,
                stdev_factor: 4,
                enforcing_percent: 0,
            }),
            ..OutlierDetection::default()
        });
        all.pool = ConnectionPool {
            max_connections: Some(1),
            connect_timeout: Some(2 * S),
            tcp_idle: Some(3 * S),
            keep_alive: Some(TcpKeepAlive {
                probes: Some(4),
                time: Some(5 * S),
                interval: None,
            }),
            max_pending: Some(6),
            max_requests: Some(7),
            max_retries: Some(8),
            requests_per_connection: Some(9),
            http_idle: Some(10 * S),
            max_streams: Some(11),
            max_duration: Some(12 * S),
            ..ConnectionPool::default()
        };
        all.retry_budget = Some(RetryBudget {
            percent_thousandths: 12_500,
            min: 0,
        });
        all.tls = Some(ClientTls::Mutual(Some("way.example".into())));
        all.proxy_protocol = Some(ProxyProtocol::V1);
        let origin = TlsOrigin {
            revocations: None,
            mutual: true,
            authorities: Authorities::Pem(b"pem".as_slice().into()),
            credential: Some("shown".into()),
            granted: None,
            certificate: None,
            server_name: Some("api.example".into()),
            subject_alt_names: vec!["other.example".into()],
            unverified: false,
        };
        let files = TlsOrigin {
            revocations: Some("/ca.crl".into()),
            authorities: Authorities::File("/ca.pem".into()),
            credential: None,
            certificate: Some(("/c.pem".into(), "/k.pem".into())),
            unverified: true,
            ..origin.clone()
        };
        let system = TlsOrigin {
            mutual: false,
            authorities: Authorities::System,
            credential: None,
            server_name: None,
            ..origin.clone()
        };
        let originated = |origin: TlsOrigin| PortTraffic {
            tls: Some(ClientTls::Originate(origin.into())),
            ..PortTraffic::default()
        };
        let unnamed = PortTraffic {
            proxy_protocol: Some(ProxyProtocol::V2),
            tls: Some(ClientTls::Mutual(None)),
            ..PortTraffic::default()
        };
        let plain = PortTraffic {
            tls: Some(ClientTls::Disable),
            outliers: Some(OutlierDetection::default()),
            ..PortTraffic::default()
        };
        let cases = [
            all,
            plain,
            unnamed,
            originated(origin),
            originated(files),
            originated(system),
            balanced(Algorithm::LeastRequest, None),
            balanced(Algorithm::RoundRobin, None),
            balanced(Algorithm::Random, None),
            balanced(Algorithm::RingHash(1_024), Some(HashKey::SourceIp)),
            balanced(
                Algorithm::RingHash(1),
                Some(HashKey::Header("x-user".into())),
            ),
            balanced(Algorithm::RingHash(1), Some(HashKey::Query("user".into()))),
            balanced(Algorithm::RingHash(1), Some(HashKey::Cookie(bare))),
        ];
        for said in cases {
            let message: Option<TrafficPolicy> = encode(&said);
            assert!(message.is_some(), "{said:?}");
            assert_eq!(decode::<PortTraffic, _>(message).expect("good"), said);
        }
        assert_eq!(encode::<_, TrafficPolicy>(&PortTraffic::default()), None);
        assert_eq!(
            decode::<PortTraffic, TrafficPolicy>(None).expect("good"),
            PortTraffic::default()
        );
    }

    #[test]
    fn what_this_end_does_not_know_is_refused() {
        let good: Option<TrafficPolicy> =
            encode(&balanced(Algorithm::Maglev(251), Some(HashKey::SourceIp)));
        let good = good.expect("a message");
        let mut unknown = good.clone();
        unknown.tls = 9;
        let mut headed = good.clone();
        headed.proxy_protocol = 3;
        let mut bare = good.clone();
        bare.tls = voile_proto::proxy::ClientTls::Originate.into();
        let mut unshown = bare.clone();
        unshown.tls_origin = Some(voile_proto::proxy::TlsOrigin {
            mutual: true,
            ..Default::default()
        });
        let mut small = good.clone();
        let mut other = good.clone();
        let mut keyless = good;
        if let (Some(small), Some(other), Some(keyless)) = (
            &mut small.load_balancer,
            &mut other.load_balancer,
            &mut keyless.load_balancer,
        ) {
            small.size = 1;
            other.algorithm = 77;
            keyless.key = Some(voile_proto::proxy::HashKey::default());
        }
        for (message, why) in [
            (unknown, "tls"),
            (headed, "proxy_protocol"),
            (bare, "tls_origin"),
            (unshown, "credential"),
            (small, "size"),
            (other, "algorithm"),
            (keyless, "key"),
        ] {
            let error = decode::<PortTraffic, _>(Some(message))
                .expect_err(why)
                .to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
