// Pipy as server sidecar: for HTTP and TCP a listener in plaintext and one that demands mutual TLS. As client.js otherwise.
var certificate = {
  cert: new crypto.Certificate(os.readFile('${SERVER_CERTIFICATE}')),
  key: new crypto.PrivateKey(os.readFile('${SERVER_KEY}')),
}
var trusted = [new crypto.Certificate(os.readFile('${ROOT}'))]

function isClient(ok, cert) {
  var name = cert.subject.commonName
  return ok && (name === 'client' || name === 'lab root')
}

var tls = {
  minVersion: 'TLS1.3',
  maxVersion: 'TLS1.3',
  ciphers: 'TLS_AES_128_GCM_SHA256',
  certificate: certificate,
  trusted: trusted,
  verify: isClient,
}

var echo = '${ECHO_ADDRESS}:${ECHO_PORT}'
var tcpEcho = '${ECHO_ADDRESS}:${TCP_ECHO_PORT}'

var $connection

pipy.listen('${SERVER_ADDRESS}:${SERVER_PLAIN_PORT}', $=>$
  .onStart(function () { $connection = new Object })
  .demuxHTTP().to($=>$
    .muxHTTP(() => $connection).to($=>$.connect(echo))
  )
)

pipy.listen('${SERVER_ADDRESS}:${SERVER_TLS_PORT}', $=>$
  .onStart(function () { $connection = new Object })
  .acceptTLS(tls).to($=>$
    .demuxHTTP().to($=>$
      .muxHTTP(() => $connection).to($=>$.connect(echo))
    )
  )
)

pipy.listen('${SERVER_ADDRESS}:${TCP_SERVER_PLAIN_PORT}', $=>$.connect(tcpEcho))

pipy.listen('${SERVER_ADDRESS}:${TCP_SERVER_TLS_PORT}', $=>$
  .acceptTLS(tls).to($=>$.connect(tcpEcho))
)
