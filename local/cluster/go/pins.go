//go:build pins

// Package pins holds in go.mod the main packages that are built by their module path.
package pins

import _ "github.com/prometheus/prometheus/cmd/prometheus"
