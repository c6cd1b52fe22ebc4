// Pipy as client sidecar: for HTTP and TCP one listener per way the lab goes. Names in braces are filled in by the lab.
// The ways named stage lead over the same TLS to servers of the lab, one with the right name and one with a wrong one.
// Tuned: as many threads as every proxy, keep-alive on both sides (a connection upstream for each downstream, since Pipy
// pipelines what shares one), no logs. TLS 1.3 with the suite that all contestants use.
var certificate = {
  cert: new crypto.Certificate(os.readFile('${CLIENT_CERTIFICATE}')),
  key: new crypto.PrivateKey(os.readFile('${CLIENT_KEY}')),
}
var trusted = [new crypto.Certificate(os.readFile('${ROOT}'))]

// Asked for each certificate of the chain. Pipy shows no URI among alternative names, so that the common name stands in.
function isServer(ok, cert) {
  var name = cert.subject.commonName
  return ok && (name === 'server' || name === 'lab root')
}

var tls = {
  minVersion: 'TLS1.3',
  maxVersion: 'TLS1.3',
  ciphers: 'TLS_AES_128_GCM_SHA256',
  certificate: certificate,
  trusted: trusted,
  verify: isServer,
}

var $connection

function relayHTTP(listen, to) {
  pipy.listen(listen, $=>$
    .onStart(function () { $connection = new Object })
    .demuxHTTP().to($=>$
      .muxHTTP(() => $connection).to($=>$.connect(to))
    )
  )
}

function sealedHTTP(listen, to) {
  pipy.listen(listen, $=>$
    .onStart(function () { $connection = new Object })
    .demuxHTTP().to($=>$
      .muxHTTP(() => $connection).to($=>$
        .connectTLS(tls).to($=>$.connect(to))
      )
    )
  )
}

function relayTCP(listen, to) {
  pipy.listen(listen, $=>$.connect(to))
}

function sealedTCP(listen, to) {
  pipy.listen(listen, $=>$.connectTLS(tls).to($=>$.connect(to)))
}

relayHTTP('${CLIENT_ADDRESS}:${PLAIN_PORT}', '${SERVER_ADDRESS}:${SERVER_PLAIN_PORT}')
relayHTTP('${CLIENT_ADDRESS}:${DIRECT_PORT}', '${ECHO_ADDRESS}:${ECHO_PORT}')
sealedHTTP('${CLIENT_ADDRESS}:${TLS_PORT}', '${SERVER_ADDRESS}:${SERVER_TLS_PORT}')
sealedHTTP('${CLIENT_ADDRESS}:${STAGE_PORT}', '${SERVER_ADDRESS}:${SERVER_STAGE_PORT}')
relayTCP('${CLIENT_ADDRESS}:${TCP_PLAIN_PORT}', '${SERVER_ADDRESS}:${TCP_SERVER_PLAIN_PORT}')
relayTCP('${CLIENT_ADDRESS}:${TCP_DIRECT_PORT}', '${ECHO_ADDRESS}:${TCP_ECHO_PORT}')
sealedTCP('${CLIENT_ADDRESS}:${TCP_TLS_PORT}', '${SERVER_ADDRESS}:${TCP_SERVER_TLS_PORT}')
sealedTCP('${CLIENT_ADDRESS}:${TCP_STAGE_PORT}', '${SERVER_ADDRESS}:${TCP_SERVER_STAGE_PORT}')
