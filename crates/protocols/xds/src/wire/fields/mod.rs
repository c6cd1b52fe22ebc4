//! Both directions of a message from one list of its fields. The control plane turns a checked type into a message, and a proxy
//! turns the message into the checked type. A proxy does not trust the sender: the way back checks every value.

pub(in crate::wire) mod forms;
mod values;

use std::collections::BTreeMap;

use super::WireError;

/// A checked type and its form on the wire: a message, or one or several fields of a message.
pub trait WireType<F>: Sized {
    /// The form on the wire.
    fn to_wire(&self) -> F;

    /// Checks what came over the wire. The error names the field inside the form.
    fn from_wire(form: F) -> Result<Self, WireError>;
}

/// An entry of a map, whose key is one of its own fields.
pub trait WireEntry<K> {
    /// Name of the field in the message.
    const KEY: &'static str;

    /// The key.
    fn key(&self) -> K;
}

/// Entries by their keys.
pub fn by_key<K: Ord, V: WireEntry<K>>(entries: impl Iterator<Item = V>) -> BTreeMap<K, V> {
    entries.map(|entry| (entry.key(), entry)).collect()
}

/// Implements [`WireType`] for a struct and a message by the list of its fields:
///
/// - `name`: a field of the same name in the message.
/// - `name = part`: a field of another name.
/// - `name = (one, two)`: several fields of the message.
/// - `… by check`: a function checks the way back instead of the field's type.
/// - `… with form`: a module of two functions translates both ways; see [`forms`].
/// - `name: value`: not in the message; proxies have this value.
///
/// `verify function` checks the whole. Both structs are written out, so that a forgotten field does not compile.
macro_rules! wire_type {
    (@fields $types:tt $verify:tt $done:tt $unsent:tt $name:ident $($how:ident $form:ident)?, $($rest:tt)*) => {
        wire_type!(@fields $types $verify $done $unsent $name = ($name) $($how $form)?, $($rest)*);
    };
    (@fields $types:tt $verify:tt $done:tt $unsent:tt $name:ident = $part:ident $($how:ident $form:ident)?, $($rest:tt)*) => {
        wire_type!(@fields $types $verify $done $unsent $name = ($part) $($how $form)?, $($rest)*);
    };
    (@fields $types:tt $verify:tt $done:tt $unsent:tt $name:ident = $parts:tt, $($rest:tt)*) => {
        wire_type!(@fields $types $verify $done $unsent $name = $parts with WireType, $($rest)*);
    };
    (@fields $types:tt $verify:tt [$($done:tt)*] $unsent:tt $name:ident = $parts:tt with $form:ident, $($rest:tt)*) => {
        wire_type!(@fields $types $verify [$($done)* $name $parts $form::to_wire, $form::from_wire,] $unsent $($rest)*);
    };
    (@fields $types:tt $verify:tt [$($done:tt)*] $unsent:tt $name:ident = $parts:tt by $check:ident, $($rest:tt)*) => {
        wire_type!(@fields $types $verify [$($done)* $name $parts WireType::to_wire, $check,] $unsent $($rest)*);
    };
    (@fields $types:tt $verify:tt $done:tt [$($unsent:tt)*] $name:ident: $value:expr, $($rest:tt)*) => {
        wire_type!(@fields $types $verify $done [$($unsent)* $name $value,] $($rest)*);
    };
    (@fields [$type:ty, $message:path] [$($verify:path)?] [$($name:ident ($($part:ident),+) $to:path, $from:path,)*]
        [$($unsent:ident $value:expr,)*]) => {
        #[allow(unused_parens, reason = "a value has one field or a tuple of them")]
        impl WireType<$message> for $type {
            fn to_wire(&self) -> $message {
                $(let ($($part),+) = $to(&self.$name);)*
                $message { $($($part),+),* }
            }

            fn from_wire(form: $message) -> Result<Self, WireError> {
                let $message { $($($part),+),* } = form;
                let value = Self {
                    $($name: $from(($($part),+)).map_err(|error| error.within(wire_type!(@place $($part),+)))?,)*
                    $($unsent: $value,)*
                };
                $($verify(&value)?;)?
                Ok(value)
            }
        }
    };
    (@place $part:ident) => { stringify!($part) };
    // Several fields: their translation says which of them is wrong.
    (@place $($part:ident),+) => { "" };
    ($type:ty as $message:path { $($fields:tt)* } $(verify $verify:path)?) => {
        wire_type!(@fields [$type, $message] [$($verify)?] [] [] $($fields)*);
    };
}

/// The same for a tuple, by the names that its parts have in the message.
macro_rules! wire_tuple {
    (($($type:ty),+) as $message:path { $($part:ident),+ }) => {
        impl WireType<$message> for ($($type),+) {
            fn to_wire(&self) -> $message {
                let ($($part),+) = self;
                $message { $($part: WireType::to_wire($part)),+ }
            }

            fn from_wire(form: $message) -> Result<Self, WireError> {
                let $message { $($part),+ } = form;
                Ok(($(WireType::from_wire($part).map_err(|error| error.within(stringify!($part)))?),+))
            }
        }
    };
}

/// The same for enums whose variants have the same names. An unknown value is refused, and so is one behind `refuse`.
macro_rules! wire_enum {
    ($type:ty as wire::$wire:ident { $($name:ident),+ $(; refuse $refused:ident: $why:literal)? }) => {
        impl WireType<i32> for $type {
            fn to_wire(&self) -> i32 {
                match self {
                    $(Self::$name => wire::$wire::$name.into(),)+
                }
            }

            fn from_wire(form: i32) -> Result<Self, WireError> {
                match wire::$wire::try_from(form) {
                    $(Ok(wire::$wire::$name) => Ok(Self::$name),)+
                    $(Ok(wire::$wire::$refused) => Err(WireError::new("", $why)),)?
                    Err(_) => Err($crate::wire::unknown_value("", form)),
                }
            }
        }
    };
}

/// Implements [`WireEntry`].
macro_rules! wire_key {
    ($type:ident by $field:ident: $key:ty) => {
        impl $crate::wire::fields::WireEntry<$key> for $type {
            const KEY: &'static str = stringify!($field);

            fn key(&self) -> $key {
                self.$field.clone()
            }
        }
    };
}

pub(in crate::wire) use {wire_enum, wire_key, wire_tuple, wire_type};
