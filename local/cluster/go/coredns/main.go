// Command coredns is CoreDNS with the plugins that a cluster's service names need, and no others:
// six plugins build in seconds where the full list takes minutes.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// The order is the order in which a query passes the plugins.
	dnsserver.Directives = []string{"reload", "health", "ready", "errors", "cache", "kubernetes"}
	coremain.Run()
}
