//! Forms of values that many messages have: what a type of the model looks like in a field.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::AddressRange;
use voile_model::{Hostname, Labels, Namespace, Port, ServiceKey, TrustDomain};
use voile_proto::proxy;

use super::{WireEntry, WireType, forms};
use crate::wire::{self, WireError};

/// Values that travel as they are.
macro_rules! same {
    ($($type:ty),+) => {$(
        impl WireType<$type> for $type {
            fn to_wire(&self) -> $type {
                self.clone()
            }

            fn from_wire(form: $type) -> Result<Self, WireError> {
                Ok(form)
            }
        }
    )+};
}

same!(bool, u32, u64, String, Vec<u8>);

/// Values that may be unset: the field then has its default, 0 or nothing.
macro_rules! unset_is_default {
    ($($type:ty as $form:ty),+) => {$(
        impl WireType<$form> for Option<$type> {
            fn to_wire(&self) -> $form {
                self.as_ref().map(WireType::to_wire).unwrap_or_default()
            }

            fn from_wire(form: $form) -> Result<Self, WireError> {
                let set = form != <$form>::default();
                set.then(|| WireType::from_wire(form)).transpose()
            }
        }
    )+};
}

unset_is_default!(u16 as u32, u32 as u32, u64 as u64, Duration as u32, Port as u32, Arc<str> as String, String as String,
    Namespace as String, IpAddr as Vec<u8>);

impl<T: WireType<F>, F> WireType<Option<F>> for Option<T> {
    fn to_wire(&self) -> Option<F> {
        self.as_ref().map(WireType::to_wire)
    }

    fn from_wire(form: Option<F>) -> Result<Self, WireError> {
        form.map(WireType::from_wire).transpose()
    }
}

impl<T: WireType<F>, F> WireType<Vec<F>> for Vec<T> {
    fn to_wire(&self) -> Vec<F> {
        self.iter().map(WireType::to_wire).collect()
    }

    fn from_wire(form: Vec<F>) -> Result<Self, WireError> {
        forms::each(form, T::from_wire)
    }
}

/// A list in which no key appears twice.
impl<K: Ord + Display, V: WireType<F> + WireEntry<K>, F> WireType<Vec<F>> for BTreeMap<K, V> {
    fn to_wire(&self) -> Vec<F> {
        self.values().map(WireType::to_wire).collect()
    }

    fn from_wire(form: Vec<F>) -> Result<Self, WireError> {
        let mut map = Self::new();
        for (index, value) in Vec::<V>::from_wire(form)?.into_iter().enumerate() {
            if let Some(before) = map.insert(value.key(), value) {
                let key = wire::shown(&before.key().to_string());
                let reason = format!("{} `{key}` appears twice", V::KEY);
                return Err(WireError::new(format!("[{index}].{}", V::KEY), reason));
            }
        }
        Ok(map)
    }
}

impl<T: WireType<F>, F> WireType<F> for Arc<T> {
    fn to_wire(&self) -> F {
        (**self).to_wire()
    }

    fn from_wire(form: F) -> Result<Self, WireError> {
        T::from_wire(form).map(Self::new)
    }
}

impl WireType<String> for Arc<str> {
    fn to_wire(&self) -> String {
        self.to_string()
    }

    fn from_wire(form: String) -> Result<Self, WireError> {
        Ok(form.into())
    }
}

impl WireType<Vec<String>> for BTreeSet<Arc<str>> {
    fn to_wire(&self) -> Vec<String> {
        self.iter().map(WireType::to_wire).collect()
    }

    fn from_wire(form: Vec<String>) -> Result<Self, WireError> {
        Ok(form.into_iter().map(Into::into).collect())
    }
}

/// In milliseconds.
impl WireType<u32> for Duration {
    fn to_wire(&self) -> u32 {
        wire::milliseconds(*self)
    }

    fn from_wire(form: u32) -> Result<Self, WireError> {
        Ok(Self::from_millis(form.into()))
    }
}

impl WireType<u32> for u16 {
    fn to_wire(&self) -> u32 {
        (*self).into()
    }

    fn from_wire(form: u32) -> Result<Self, WireError> {
        let reason = || format!("{form} is more than {}", Self::MAX);
        Self::try_from(form).map_err(|_| WireError::new("", reason()))
    }
}

impl WireType<u32> for Port {
    fn to_wire(&self) -> u32 {
        self.get().into()
    }

    fn from_wire(form: u32) -> Result<Self, WireError> {
        wire::port("", form)
    }
}

impl WireType<Vec<u8>> for IpAddr {
    fn to_wire(&self) -> Vec<u8> {
        wire::address_bytes(*self)
    }

    fn from_wire(form: Vec<u8>) -> Result<Self, WireError> {
        wire::address("", &form)
    }
}

impl WireType<proxy::AddressRange> for AddressRange {
    fn to_wire(&self) -> proxy::AddressRange {
        proxy::AddressRange {
            address: self.address.to_wire(),
            prefix: self.prefix.into(),
        }
    }

    fn from_wire(form: proxy::AddressRange) -> Result<Self, WireError> {
        let address = wire::address("address", &form.address)?;
        let range = Self::parse(&format!("{address}/{}", form.prefix));
        let reason = || format!("{} is more bits than the address has", form.prefix);
        range.ok_or_else(|| WireError::new("prefix", reason()))
    }
}

impl WireType<proxy::SocketAddress> for SocketAddr {
    fn to_wire(&self) -> proxy::SocketAddress {
        proxy::SocketAddress {
            address: self.ip().to_wire(),
            port: self.port().into(),
        }
    }

    fn from_wire(form: proxy::SocketAddress) -> Result<Self, WireError> {
        let address = wire::address("address", &form.address)?;
        Ok(Self::new(address, wire::port("port", form.port)?.get()))
    }
}

/// Names, which travel as people write them.
macro_rules! written {
    ($($type:ty: $check:path),+) => {$(
        impl WireType<String> for $type {
            fn to_wire(&self) -> String {
                self.to_string()
            }

            fn from_wire(form: String) -> Result<Self, WireError> {
                $check("", &form)
            }
        }
    )+};
}

written!(Namespace: wire::namespace, Hostname: wire::hostname, ServiceKey: wire::service_key, TrustDomain: trust_domain);

/// In our own messages there is no default.
fn trust_domain(field: &str, text: &str) -> Result<TrustDomain, WireError> {
    match text.is_empty() {
        true => Err(WireError::new(field, "missing")),
        false => wire::trust_domain(field, text),
    }
}

/// A port of a service; without a service there is no port either.
impl WireType<(String, u32)> for Option<(ServiceKey, Port)> {
    fn to_wire(&self) -> (String, u32) {
        let port = self.as_ref();
        port.map_or_else(Default::default, |(key, port)| {
            (key.to_wire(), port.to_wire())
        })
    }

    fn from_wire((service, port): (String, u32)) -> Result<Self, WireError> {
        if service.is_empty() {
            return Ok(None);
        }
        let service = wire::service_key("service", &service)?;
        Ok(Some((service, wire::port("service_port", port)?)))
    }
}

impl WireType<Vec<proxy::Label>> for Labels {
    fn to_wire(&self) -> Vec<proxy::Label> {
        let one = |(name, value): (&Arc<str>, &Arc<str>)| proxy::Label {
            name: name.to_string(),
            value: value.to_string(),
        };
        self.iter().map(one).collect()
    }

    fn from_wire(form: Vec<proxy::Label>) -> Result<Self, WireError> {
        let pairs = form.into_iter();
        Ok(pairs.map(|label| (label.name, label.value)).collect())
    }
}
