//! Further forms of values: checks of the way back (`by` in a list of fields), and modules for both ways (`with`).

use std::sync::Arc;

use super::WireType;
use crate::wire::{WireError, shown};

/// Not 0.
pub(in crate::wire) fn positive<T: WireType<F>, F: Default + PartialEq>(
    form: F,
) -> Result<T, WireError> {
    match form == F::default() {
        true => Err(WireError::new("", "it is 0")),
        false => T::from_wire(form),
    }
}

/// Not empty.
pub(in crate::wire) fn named(form: String) -> Result<Arc<str>, WireError> {
    match form.is_empty() {
        true => Err(WireError::new("", "missing")),
        false => Ok(form.into()),
    }
}

/// A host in lower case.
pub(in crate::wire) fn lower_case(form: String) -> Result<Arc<str>, WireError> {
    if form.is_empty() || form.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let reason = format!("`{}` is not a lower-case host", shown(&form));
        return Err(WireError::new("", reason));
    }
    Ok(form.into())
}

/// A list of which each is checked.
pub(in crate::wire) fn each<T, F>(
    form: Vec<F>,
    check: impl Fn(F) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let one =
        |(index, one): (usize, F)| check(one).map_err(|error| error.within(&format!("[{index}]")));
    form.into_iter().enumerate().map(one).collect()
}

/// A list of texts that are not empty.
pub(in crate::wire) fn each_named(form: Vec<String>) -> Result<Vec<Arc<str>>, WireError> {
    each(form, named)
}

/// Absent where it is the default of its type.
pub(in crate::wire) mod or_default {
    use crate::wire::{WireError, WireType};

    pub(in crate::wire) fn to_wire<T: WireType<F>, F: Default + PartialEq>(value: &T) -> Option<F> {
        Some(value.to_wire()).filter(|form| *form != F::default())
    }

    pub(in crate::wire) fn from_wire<T: WireType<F> + Default, F>(
        form: Option<F>,
    ) -> Result<T, WireError> {
        form.map_or_else(|| Ok(T::default()), T::from_wire)
    }
}

/// Always sent; what is missing is the default of its type.
pub(in crate::wire) mod always {
    pub(in crate::wire) use super::or_default::from_wire;
    pub(in crate::wire) use super::required::to_wire;
}

/// Must be there.
pub(in crate::wire) mod required {
    use crate::wire::{WireError, WireType};

    pub(in crate::wire) fn to_wire<T: WireType<F>, F>(value: &T) -> Option<F> {
        Some(value.to_wire())
    }

    pub(in crate::wire) fn from_wire<T: WireType<F>, F>(form: Option<F>) -> Result<T, WireError> {
        T::from_wire(form.ok_or_else(|| WireError::new("", "missing"))?)
    }
}

/// True is said as false.
pub(in crate::wire) mod negated {
    use crate::wire::WireError;

    pub(in crate::wire) fn to_wire(value: &bool) -> bool {
        !value
    }

    pub(in crate::wire) fn from_wire(form: bool) -> Result<bool, WireError> {
        Ok(!form)
    }
}
