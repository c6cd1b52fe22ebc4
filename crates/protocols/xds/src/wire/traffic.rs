//! A DestinationRule's traffic policy for one port ⇄ `voile.proxy.v1.TrafficPolicy`. The settings that choose the protocol
//! between sidecars (`h2UpgradePolicy`, `useClientProtocol`) are resolved before and travel beside it.

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::traffic::{
    Algorithm, Authorities, ClientTls, ConnectionPool, Distribute, HashCookie, HashKey,
    LoadBalancer, LocalitySetting, OutlierDetection, PortTraffic, ProxyProtocol, RetryBudget,
    SuccessRate, TcpKeepAlive, TlsOrigin, Warmup,
};
use voile_proto::proxy as wire;

use super::{WireError, milliseconds};

/// The message; none where nothing is said.
#[must_use]
pub fn encode_traffic(traffic: &PortTraffic) -> Option<wire::TrafficPolicy> {
    let PortTraffic {
        balancer,
        outliers,
        pool,
        retry_budget,
        tls,
        proxy_protocol,
    } = traffic;
    let message = wire::TrafficPolicy {
        load_balancer: (*balancer != LoadBalancer::default()).then(|| encode_balancer(balancer)),
        outlier_detection: outliers.as_ref().map(encode_outliers),
        connection_pool: Some(encode_pool(pool))
            .filter(|pool| *pool != wire::ConnectionPool::default()),
        retry_budget: retry_budget.map(|budget| wire::RetryBudget {
            percent_thousandths: budget.percent_thousandths,
            min: budget.min,
        }),
        tls: match tls {
            None => wire::ClientTls::Automatic,
            Some(ClientTls::Disable) => wire::ClientTls::Plaintext,
            Some(ClientTls::Mutual(_)) => wire::ClientTls::MeshMutual,
            Some(ClientTls::Originate(_)) => wire::ClientTls::Originate,
        }
        .into(),
        mesh_server_name: match tls {
            Some(ClientTls::Mutual(Some(name))) => name.to_string(),
            _ => String::new(),
        },
        tls_origin: match tls {
            Some(ClientTls::Originate(origin)) => Some(encode_origin(origin)),
            _ => None,
        },
        proxy_protocol: match proxy_protocol {
            None => 0,
            Some(ProxyProtocol::V1) => 1,
            Some(ProxyProtocol::V2) => 2,
        },
    };
    (message != wire::TrafficPolicy::default()).then_some(message)
}

fn some(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

fn encode_origin(origin: &TlsOrigin) -> wire::TlsOrigin {
    let text = |text: &Option<Arc<str>>| text.as_deref().unwrap_or_default().to_owned();
    let files = origin.certificate.as_ref();
    let (authorities, file) = match &origin.authorities {
        Authorities::System => (Vec::new(), String::new()),
        Authorities::Pem(pem) => (pem.to_vec(), String::new()),
        Authorities::File(path) => (Vec::new(), path.to_string()),
    };
    wire::TlsOrigin {
        mutual: origin.mutual,
        credential: text(&origin.credential),
        authorities,
        server_name: text(&origin.server_name),
        subject_alt_names: origin
            .subject_alt_names
            .iter()
            .map(ToString::to_string)
            .collect(),
        unverified: origin.unverified,
        authorities_file: file,
        certificate_file: files.map(|(path, _)| path.to_string()).unwrap_or_default(),
        key_file: files.map(|(_, path)| path.to_string()).unwrap_or_default(),
        revocations_file: text(&origin.revocations),
    }
}

fn check_origin(message: &wire::TlsOrigin) -> Result<TlsOrigin, WireError> {
    let authorities = match (&*message.authorities, some(&message.authorities_file)) {
        ([], None) => Authorities::System,
        (pem, None) => Authorities::Pem(pem.into()),
        ([], Some(path)) => Authorities::File(path),
        (_, Some(_)) => return Err(WireError::new("authorities", "PEM and file are both set")),
    };
    let certificate = match (some(&message.certificate_file), some(&message.key_file)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(WireError::new(
                "key_file",
                "certificate_file and key_file must be set together",
            ));
        }
    };
    let credential = some(&message.credential);
    // Never read as "none need be shown".
    if message.mutual && credential.is_none() && certificate.is_none() {
        return Err(WireError::new("credential", "missing"));
    }
    Ok(TlsOrigin {
        mutual: message.mutual,
        revocations: some(&message.revocations_file),
        authorities,
        credential,
        granted: None,
        certificate,
        server_name: some(&message.server_name),
        subject_alt_names: message
            .subject_alt_names
            .iter()
            .map(|name| name.as_str().into())
            .collect(),
        unverified: message.unverified,
    })
}

fn encode_balancer(balancer: &LoadBalancer) -> wire::LoadBalancer {
    use wire::LoadBalancerAlgorithm as Word;
    let (word, size) = match balancer.algorithm {
        Algorithm::LeastCost => (Word::LeastCost, 0),
        Algorithm::LeastRequest => (Word::LeastRequest, 0),
        Algorithm::RoundRobin => (Word::RoundRobin, 0),
        Algorithm::Random => (Word::Random, 0),
        Algorithm::RingHash(least) => (Word::RingHash, u32::try_from(least).unwrap_or(u32::MAX)),
        Algorithm::Maglev(size) => (Word::Maglev, size),
    };
    wire::LoadBalancer {
        algorithm: word.into(),
        size,
        key: balancer.key.as_ref().map(|key| wire::HashKey {
            from: Some(encode_key(key)),
        }),
        warmup: balancer.warmup.as_ref().map(|warmup| wire::Warmup {
            duration_ms: milliseconds(warmup.duration),
            minimum_percent: warmup.minimum_percent,
            aggression_thousandths: warmup.aggression_thousandths,
        }),
        locality: balancer.locality.as_ref().map(encode_locality),
    }
}

fn encode_locality(locality: &LocalitySetting) -> wire::LocalitySetting {
    let distribute = locality.distribute.iter().map(|one| wire::Distribute {
        from: one.from.to_string(),
        to: one
            .to
            .iter()
            .map(|(locality, percent)| wire::LocalityShare {
                locality: locality.to_string(),
                percent: *percent,
            })
            .collect(),
    });
    let failover = locality.failover.iter().map(|(from, to)| wire::Failover {
        from: from.to_string(),
        to: to.to_string(),
    });
    wire::LocalitySetting {
        disabled: !locality.enabled,
        distribute: distribute.collect(),
        failover: failover.collect(),
        priority: locality.priority.iter().map(ToString::to_string).collect(),
        always: locality.always,
        zone_aware: locality.zone_aware.unwrap_or(0),
    }
}

fn check_locality(message: &wire::LocalitySetting) -> LocalitySetting {
    let text = |text: &String| Arc::<str>::from(text.as_str());
    let distribute = message.distribute.iter().map(|one| Distribute {
        from: text(&one.from),
        to: one
            .to
            .iter()
            .map(|share| (text(&share.locality), share.percent))
            .collect(),
    });
    let failover = message.failover.iter();
    LocalitySetting {
        enabled: !message.disabled,
        distribute: distribute.collect(),
        failover: failover
            .map(|one| (text(&one.from), text(&one.to)))
            .collect(),
        priority: message.priority.iter().map(text).collect(),
        always: message.always,
        zone_aware: (message.zone_aware > 0).then_some(message.zone_aware),
    }
}

fn encode_key(key: &HashKey) -> wire::hash_key::From {
    match key {
        HashKey::Header(name) => wire::hash_key::From::Header(name.to_string()),
        HashKey::SourceIp => wire::hash_key::From::SourceIp(true),
        HashKey::Query(name) => wire::hash_key::From::Query(name.to_string()),
        HashKey::Cookie(cookie) => wire::hash_key::From::Cookie(wire::HashCookie {
            name: cookie.name.to_string(),
            path: cookie.path.as_deref().unwrap_or_default().to_owned(),
            ttl_ms: cookie.ttl.map(milliseconds),
            attributes: cookie.attributes.iter().map(ToString::to_string).collect(),
        }),
    }
}

fn encode_outliers(outliers: &OutlierDetection) -> wire::OutlierDetection {
    wire::OutlierDetection {
        consecutive_5xx: outliers.consecutive_5xx,
        consecutive_gateway: outliers.consecutive_gateway,
        consecutive_local: outliers.consecutive_local,
        interval_ms: milliseconds(outliers.interval),
        base_ejection_ms: milliseconds(outliers.base_ejection),
        max_ejection_percent: outliers.max_ejection_percent,
        min_health_percent: outliers.min_health_percent,
        success_rate: outliers.success_rate.map(|rate| wire::SuccessRate {
            minimum_hosts: rate.minimum_hosts,
            request_volume: rate.request_volume,
            stdev_factor: rate.stdev_factor,
            enforcing_percent: rate.enforcing_percent,
        }),
    }
}

fn encode_pool(pool: &ConnectionPool) -> wire::ConnectionPool {
    let time = |time: Option<Duration>| time.map_or(0, milliseconds);
    wire::ConnectionPool {
        max_connections: pool.max_connections.unwrap_or(0),
        connect_timeout_ms: time(pool.connect_timeout),
        tcp_idle_ms: time(pool.tcp_idle),
        keep_alive: pool.keep_alive.map(|said| wire::TcpKeepAlive {
            probes: said.probes.unwrap_or(0),
            time_ms: time(said.time),
            interval_ms: time(said.interval),
        }),
        max_pending: pool.max_pending.unwrap_or(0),
        max_requests: pool.max_requests.unwrap_or(0),
        max_retries: pool.max_retries.unwrap_or(0),
        requests_per_connection: pool.requests_per_connection.unwrap_or(0),
        http_idle_ms: time(pool.http_idle),
    }
}

pub(super) fn time(milliseconds: u32) -> Option<Duration> {
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds.into()))
}

/// Checks a message.
pub(super) fn check_traffic(
    message: Option<&wire::TrafficPolicy>,
) -> Result<PortTraffic, WireError> {
    let Some(message) = message else {
        return Ok(PortTraffic::default());
    };
    let balancer = message.load_balancer.as_ref().map(check_balancer);
    let outliers = message.outlier_detection.as_ref().map(check_outliers);
    let pool = message.connection_pool.as_ref().map(check_pool);
    let balancer = balancer.transpose();
    Ok(PortTraffic {
        balancer: balancer
            .map_err(|error| error.within("load_balancer"))?
            .unwrap_or_default(),
        outliers,
        pool: pool.unwrap_or_default(),
        retry_budget: message.retry_budget.as_ref().map(|budget| RetryBudget {
            percent_thousandths: budget.percent_thousandths,
            min: budget.min,
        }),
        // An unknown mode might have demanded secrecy.
        tls: match wire::ClientTls::try_from(message.tls) {
            Ok(wire::ClientTls::Automatic) => None,
            Ok(wire::ClientTls::Plaintext) => Some(ClientTls::Disable),
            Ok(wire::ClientTls::MeshMutual) => {
                Some(ClientTls::Mutual(some(&message.mesh_server_name)))
            }
            Ok(wire::ClientTls::Originate) => {
                let origin = message.tls_origin.as_ref();
                let origin = origin.ok_or_else(|| WireError::new("tls_origin", "missing"))?;
                Some(ClientTls::Originate(check_origin(origin)?.into()))
            }
            Err(_) => return Err(super::unknown_value("tls", message.tls)),
        },
        proxy_protocol: match message.proxy_protocol {
            0 => None,
            1 => Some(ProxyProtocol::V1),
            2 => Some(ProxyProtocol::V2),
            other => {
                let why = format!("version {other} does not exist");
                return Err(WireError::new("proxy_protocol", why));
            }
        },
    })
}

fn check_balancer(message: &wire::LoadBalancer) -> Result<LoadBalancer, WireError> {
    use wire::LoadBalancerAlgorithm as Word;
    let unknown = |_| WireError::new("algorithm", format!("{} is unknown", message.algorithm));
    let algorithm = match Word::try_from(message.algorithm).map_err(unknown)? {
        Word::LeastCost => Algorithm::LeastCost,
        Word::LeastRequest => Algorithm::LeastRequest,
        Word::RoundRobin => Algorithm::RoundRobin,
        Word::Random => Algorithm::Random,
        Word::RingHash => Algorithm::RingHash(message.size.into()),
        // A table of one place has nothing to skip through.
        Word::Maglev if message.size < 2 => return Err(WireError::new("size", "too small")),
        Word::Maglev => Algorithm::Maglev(message.size),
    };
    let key = message.key.as_ref().map(check_key).transpose()?;
    Ok(LoadBalancer {
        algorithm,
        key,
        warmup: message.warmup.as_ref().map(|warmup| Warmup {
            duration: Duration::from_millis(warmup.duration_ms.into()),
            minimum_percent: warmup.minimum_percent,
            aggression_thousandths: warmup.aggression_thousandths,
        }),
        locality: message.locality.as_ref().map(check_locality),
    })
}

fn check_key(message: &wire::HashKey) -> Result<HashKey, WireError> {
    let text = |text: &str| Arc::<str>::from(text);
    let from = message.from.as_ref();
    Ok(
        match from.ok_or_else(|| WireError::new("key", "missing"))? {
            wire::hash_key::From::Header(name) => HashKey::Header(text(name)),
            wire::hash_key::From::Query(name) => HashKey::Query(text(name)),
            wire::hash_key::From::SourceIp(_) => HashKey::SourceIp,
            wire::hash_key::From::Cookie(cookie) => HashKey::Cookie(HashCookie {
                name: text(&cookie.name),
                path: Some(text(&cookie.path)).filter(|path| !path.is_empty()),
                ttl: cookie
                    .ttl_ms
                    .map(|milliseconds| Duration::from_millis(milliseconds.into())),
                attributes: cookie.attributes.iter().map(|one| text(one)).collect(),
            }),
        },
    )
}

fn check_outliers(message: &wire::OutlierDetection) -> OutlierDetection {
    OutlierDetection {
        consecutive_5xx: message.consecutive_5xx,
        consecutive_gateway: message.consecutive_gateway,
        consecutive_local: message.consecutive_local,
        interval: Duration::from_millis(message.interval_ms.into()),
        base_ejection: Duration::from_millis(message.base_ejection_ms.into()),
        max_ejection_percent: message.max_ejection_percent,
        min_health_percent: message.min_health_percent,
        success_rate: message.success_rate.as_ref().map(|rate| SuccessRate {
            minimum_hosts: rate.minimum_hosts,
            request_volume: rate.request_volume,
            stdev_factor: rate.stdev_factor,
            enforcing_percent: rate.enforcing_percent,
        }),
        ..OutlierDetection::default()
    }
}

fn check_pool(message: &wire::ConnectionPool) -> ConnectionPool {
    let limit = |limit: u32| (limit > 0).then_some(limit);
    ConnectionPool {
        http2_upgrade: None,
        use_client_protocol: false,
        max_connections: limit(message.max_connections),
        connect_timeout: time(message.connect_timeout_ms),
        tcp_idle: time(message.tcp_idle_ms),
        keep_alive: message.keep_alive.as_ref().map(|said| TcpKeepAlive {
            probes: limit(said.probes),
            time: time(said.time_ms),
            interval: time(said.interval_ms),
        }),
        max_pending: limit(message.max_pending),
        max_requests: limit(message.max_requests),
        max_retries: limit(message.max_retries),
        requests_per_connection: limit(message.requests_per_connection),
        http_idle: time(message.http_idle_ms),
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

    use super::{check_traffic, encode_traffic};

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
            let message = encode_traffic(&said);
            assert!(message.is_some(), "{said:?}");
            assert_eq!(check_traffic(message.as_ref()).expect("good"), said);
        }
        assert_eq!(encode_traffic(&PortTraffic::default()), None);
        assert_eq!(check_traffic(None).expect("good"), PortTraffic::default());
    }

    #[test]
    fn what_this_end_does_not_know_is_refused() {
        let good = encode_traffic(&balanced(Algorithm::Maglev(251), Some(HashKey::SourceIp)));
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
            let error = check_traffic(Some(&message)).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
